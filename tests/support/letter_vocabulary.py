"""A vocabulary and random grammars for table models."""

from __future__ import annotations

import random
from collections.abc import Sequence

LETTERS = (b"a", b"b", b"\xc3", b"\xbc", b"cd", b"", b"b a")
"""What tokens of a table model stand for: among them halves of a character, and nothing."""


class Letters:
    """A vocabulary for table models; ``end`` ends a reply, -1 for none."""

    def __init__(self, end: int = -1) -> None:
        self.end = end

    def token_bytes(self, token: int) -> bytes:
        return LETTERS[token]

    def ends(self, token: int) -> bool:
        return token == self.end


class LetterGrammar:
    """A random automaton over the tokens of a table model; ``end`` may come in some of its states.

    Of its states some leave no choice. There is always something that may come.
    """

    def __init__(self, seed: int, n_vocab: int, end: int) -> None:
        chance = random.Random(seed)
        self.end = end
        self.next = []
        for _ in range(5):
            n = chance.choice([1, 1, 2, n_vocab])
            self.next.append({token: chance.randrange(5) for token in chance.sample(range(n_vocab), n)})

    def start(self) -> LetterState:
        return LetterState(self, 0)

    def takes(self, tokens: list[int]) -> bool:
        """Return whether a reply may be these tokens, or begin with them."""
        state: LetterState | None = self.start()
        for token in tokens:
            if state is None or not state.allowed([token])[0]:
                return False
            state = state.after(token)
        return True


class LetterState:
    """A state of a ``LetterGrammar``."""

    def __init__(self, grammar: LetterGrammar, place: int) -> None:
        self.grammar = grammar
        self.place = place

    def allowed(self, tokens: Sequence[int]) -> list[bool]:
        return [token in self.grammar.next[self.place] for token in tokens]

    def after(self, token: int) -> LetterState | None:
        assert self.allowed([token])[0], "llama.cpp would abort"
        return None if token == self.grammar.end else LetterState(self.grammar, self.grammar.next[self.place][token])

    def forced(self, most: int) -> list[int]:
        tokens: list[int] = []
        place = self.place
        while len(tokens) < most and len(self.grammar.next[place]) == 1:
            ((token, place),) = self.grammar.next[place].items()
            tokens.append(token)
            if token == self.grammar.end:
                break
        return tokens

    def learn(self, token: int) -> None:
        """Tokens are letters; there is one way to cut them."""
