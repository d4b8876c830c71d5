"""The sampler's interface of grammars, and the state that it keeps along a reply.

A grammar is a seam: the sampler asks which tokens may come next and what state follows. llguidance's grammars are in
``edge_spec.sampling.guidance``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["Grammar", "GrammarState", "KeptNode", "Node", "Progress"]


class GrammarState(Protocol):
    """A state of a grammar after some tokens of a reply. Immutable."""

    def allowed(self, tokens: Sequence[int]) -> Sequence[bool] | npt.NDArray[np.bool_]:
        """Return whether each of these tokens may come next."""

    def after(self, token: int) -> GrammarState | None:
        """Return the state after a token that may come next; None if the reply ends with it."""

    def forced(self, most: int) -> list[int]:
        """Return at most ``most`` tokens of the text that has to come next, split as the model probably will."""

    def learn(self, token: int) -> None:
        """Learn how the model splits forced text: it wrote ``token`` here."""


class Grammar(Protocol):
    """A set of possible replies."""

    def start(self) -> GrammarState:
        """Return the state before the first token of a reply."""


class Node:
    """A position in a reply, and the sampler's state there.

    Attributes:
        index: how many tokens of the reply come before it.
        state: the grammar's; None where nothing is constrained: without a grammar, and after the end of a reply.
        mu: mirostat's; that of the place before, until the target has picked the token between them.
    """

    __slots__ = ("_below", "_everything", "_known", "index", "mu", "state")

    def __init__(self, index: int, state: GrammarState | None, mu: float) -> None:
        self.index = index
        self.state = state
        self.mu = mu
        self._known: dict[int, bool] = {}
        self._everything: npt.NDArray[np.bool_] | None = None
        self._below: dict[int, Node] = {}

    def below(self, token: int) -> Node:
        """Return the position after ``token``."""
        node = self._below.get(token)
        if node is None:
            # Drafters may propose a forbidden token: nothing is constrained after it.
            may = self.state is not None and self.allowed([token])[0]
            state = self.state.after(token) if may and self.state else None
            node = self._below[token] = Node(self.index + 1, state, self.mu)
        return node

    def allowed(self, tokens: Iterable[int]) -> list[bool]:
        """Return whether each of these tokens may come next; the grammar is asked only once about each."""
        if self.state is None:
            return [True for _ in tokens]
        tokens = list(tokens)
        if self._everything is not None:
            return self._everything[tokens].tolist()  # type: ignore[no-any-return]
        unknown = [token for token in tokens if token not in self._known]
        if unknown:
            self._known.update(zip(unknown, map(bool, self.state.allowed(unknown)), strict=True))
        return [self._known[token] for token in tokens]

    def mask(self, n_vocab: int) -> npt.NDArray[np.bool_]:
        """Return which of all tokens may come next, ``[n_vocab]``."""
        if self._everything is None:
            everything = range(n_vocab)
            may = self.state.allowed(everything) if self.state is not None else [True] * n_vocab
            self._everything = np.array(may, dtype=np.bool_)
            self._known.clear()
        return self._everything


class KeptNode(Node):
    """A position as a model with a trimmed vocabulary sees it: by columns of its rows instead of token ids."""

    __slots__ = ("_kept", "_node")

    def __init__(self, node: Node, kept: KeptTokens) -> None:
        super().__init__(node.index, node.state, node.mu)
        self._node = node
        self._kept = kept

    def allowed(self, tokens: Iterable[int]) -> list[bool]:
        return self._node.allowed(self._kept.ids[list(tokens)].tolist())

    def mask(self, n_vocab: int) -> npt.NDArray[np.bool_]:
        return self._node.mask(self._kept.n_vocab)[self._kept.ids]


class Progress:
    """The accepted end of a reply, and the drafted paths from there.

    Positions are found by the tokens after the last accepted one, so earlier tokens may be removed. Paths that turn
    out to be wrong are dropped when the accepted end moves.

    Attributes:
        n_before: how many tokens of the text come before the reply.
        accepted: the place after the last accepted token.
    """

    def __init__(self, n_before: int, accepted: Node) -> None:
        self.n_before = n_before
        self.accepted = accepted

    def at(self, text: Sequence[int]) -> Node:
        """Return the position at the end of ``text``."""
        n = len(text) - self.n_before - self.accepted.index
        if n < 0:
            raise ValueError(f"a text without the last {-n} of {self.accepted.index} accepted tokens")
        node = self.accepted
        for token in text[len(text) - n :] if n else ():
            node = node.below(token)
        return node
