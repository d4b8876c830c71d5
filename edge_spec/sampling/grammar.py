"""What a grammar is to the sampler, and the states a reply goes through.

A grammar is a seam: the sampler asks which tokens may come next and what state follows. llama.cpp's grammars are in
``edge_spec.engines.llama.grammar``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Grammar", "GrammarState", "Line", "Node"]


class GrammarState(Protocol):
    """How far a reply has come in a grammar. Never changes."""

    def allowed(self, tokens: Sequence[int]) -> list[bool]:
        """Whether each of these tokens may come next."""

    def after(self, token: int) -> GrammarState | None:
        """The state after a token that may come next; None if the reply ends with it."""

    def forced(self, most: int) -> list[int]:
        """At most ``most`` tokens for the text that has to come next, as it is likely to be cut."""

    def learn(self, token: int) -> None:
        """The model went on with ``token`` here: this is how it cuts forced text."""


class Grammar(Protocol):
    """Which replies are possible."""

    def start(self) -> GrammarState:
        """The state before the first token of a reply."""


class Node:
    """A place in a reply: the states of whatever has a memory there.

    Attributes:
        state: the grammar's; None where nothing is constrained: without a grammar, and after the end of a reply.
        mu: mirostat's, by level, see ``Line.mu``.
    """

    __slots__ = ("_below", "_everything", "_known", "mu", "state")

    def __init__(self, state: GrammarState | None, mu: dict[int, float]) -> None:
        self.state = state
        self.mu = mu
        self._known: dict[int, bool] = {}
        self._everything: npt.NDArray[np.bool_] | None = None
        self._below: dict[int, Node] = {}

    def below(self, token: int) -> Node:
        """The place after ``token``."""
        node = self._below.get(token)
        if node is None:
            # A token that cannot come may stand here nevertheless: drafters may be as bad as they like.
            may = self.state is not None and self.allowed([token])[0]
            node = self._below[token] = Node(self.state.after(token) if may and self.state else None, {})
        return node

    def allowed(self, tokens: Iterable[int]) -> list[bool]:
        """Whether each of these tokens may come next; asked only once for each."""
        if self.state is None:
            return [True for _ in tokens]
        tokens = list(tokens)
        if self._everything is not None:
            return self._everything[tokens].tolist()  # type: ignore[no-any-return]
        unknown = [token for token in tokens if token not in self._known]
        if unknown:
            self._known.update(zip(unknown, self.state.allowed(unknown), strict=True))
        return [self._known[token] for token in tokens]

    def mask(self, n_vocab: int) -> npt.NDArray[np.bool_]:
        """Which of all tokens may come next, ``[n_vocab]``."""
        if self._everything is None:
            everything = range(n_vocab)
            may = self.state.allowed(everything) if self.state is not None else [True] * n_vocab
            self._everything = np.array(may, dtype=np.bool_)
            self._known.clear()
        return self._everything


class Line:
    """The states along a reply: where the accepted text ends, and the paths that were tried from there.

    States are kept by their index in the reply and found by the tokens after the last accepted one, so the text
    before may lose tokens. Paths that turn out to be wrong stay behind when the text moves on.
    """

    def __init__(self, state: GrammarState | None, mu: float | None) -> None:
        self.index = 0
        self.root = Node(state, {} if mu is None else {0: mu})

    def at(self, text: Sequence[int], index: int) -> Node:
        """The place at the end of ``text``, which is ``index`` tokens into the reply."""
        n = index - self.index
        if n < 0:
            raise ValueError(f"place {index} of a reply whose first {self.index} tokens are accepted")
        node = self.root
        for token in text[len(text) - n :] if n else ():
            node = node.below(token)
        return node

    def mu(self, text: Sequence[int], index: int, level: int) -> float:
        """Mirostat's mu there, as far as ``level`` knows: 0 is the target's, smaller models' are higher.

        What a model nearer to the target knows is closer to the truth; where nobody has picked yet (tokens that
        were drafted without a row), the last known one stands in.
        """
        node, n = self.root, index - self.index
        found = node.mu[0]
        for token in text[len(text) - n :] if n else ():
            node = node.below(token)
            known = [known for known in node.mu if known <= level]
            if known:
                found = node.mu[min(known)]
        return found

    def commit(self, text: Sequence[int], index: int) -> None:
        """The text is accepted up to here; what was known of other paths is forgotten."""
        mu = self.root.mu.get(0)
        node = self.at(text, index)
        if mu is not None:
            node.mu = {0: self.mu(text, index, 0)}
        self.root, self.index = node, index
