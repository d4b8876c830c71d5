"""A draft: tokens that may come next, as a tree.

A tree is two arrays: ``tokens[n]`` and ``parents[n]``. A parent stands before its children, and parent -1
means "follows the text before the tree". Depths, leaves and the attention mask are derived. A sequence is a
tree in which every node is the parent of the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = ["EMPTY", "Tree", "best_of_all"]


@dataclass(frozen=True)
class Tree:
    """A tree of draft tokens.

    Attributes:
        tokens: token id of each node, ``[n]``.
        parents: index of each node's parent, ``[n]``; -1 where it follows the text before the tree.
        values: the drafter's estimate that the target will accept the node, ``[n]``, in 0..1; empty if it
            has none. A node is never worth more than its parent.
        is_sequence: whether every node is the parent of the next.

    Raises:
        ValueError: lengths differ, a parent does not stand before its child, or a value is out of its range.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    values: tuple[float, ...] = ()
    is_sequence: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tokens, parents, values = self.tokens, self.parents, self.values
        if len(tokens) != len(parents) or len(values) not in (0, len(tokens)):
            raise ValueError(f"a tree of {len(tokens)} tokens, {len(parents)} parents and {len(values)} values")
        is_sequence = parents == tuple(range(-1, len(tokens) - 1))
        object.__setattr__(self, "is_sequence", is_sequence)
        if not is_sequence:
            for node, parent in enumerate(parents):
                if not -1 <= parent < node:
                    raise ValueError(f"node {node} has parent {parent}; a parent stands before its child")
        for value, parent in zip(values, parents, strict=False):
            if not 0 <= value <= (values[parent] if parent >= 0 else 1):
                raise ValueError(f"a node worth {value}; it must be from 0 to what its parent is worth")

    @classmethod
    def sequence(cls, tokens: Iterable[int], values: Iterable[float] = ()) -> Tree:
        """Return the tree in which each token follows the one before."""
        tokens = tuple(tokens)
        return cls(tokens, tuple(range(-1, len(tokens) - 1)), tuple(values))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depths(self) -> tuple[int, ...]:
        """How many nodes stand above each node, ``[n]``; 0 for those that follow the text."""
        # A property that caches takes a lock, which is more than sequences need.
        return tuple(range(len(self.tokens))) if self.is_sequence else self._depths

    @cached_property
    def _depths(self) -> tuple[int, ...]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    def counts_by_depth(self) -> tuple[int, ...]:
        """Return the number of nodes at each depth."""
        if self.is_sequence:
            return (1,) * len(self.tokens)
        counts = [0] * (max(self.depths) + 1)
        for depth in self.depths:
            counts[depth] += 1
        return tuple(counts)

    def child(self, parent: int, token: int) -> int | None:
        """Return the child of ``parent`` that holds ``token``, if there is one (the first, should there be two)."""
        for node in self.children(parent):
            if self.tokens[node] == token:
                return node
        return None

    def children(self, parent: int) -> tuple[int, ...]:
        """Return the nodes below ``parent`` in the order in which they were drafted.

        Those that follow the text for -1.
        """
        if self.is_sequence:
            return (parent + 1,) if parent + 1 < len(self.tokens) else ()
        return self._below.get(parent, ())

    @cached_property
    def _below(self) -> dict[int, tuple[int, ...]]:
        below: dict[int, tuple[int, ...]] = {}
        for node, parent in enumerate(self.parents):
            below[parent] = (*below.get(parent, ()), node)
        return below

    def path_to(self, node: int) -> list[int]:
        """Return the nodes from the top down to ``node``; empty for -1."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def descend(self, tokens: Iterable[int]) -> list[int]:
        """Return the nodes met when walking down from the top along ``tokens``, as far as the tree holds them."""
        path: list[int] = []
        node = -1
        for token in tokens:
            child = self.child(node, token)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def under(self, tokens: Sequence[int]) -> Tree:
        """This tree, hung below the sequence ``tokens``. Values of the new nodes are 1."""
        if not tokens:
            return self
        if not self.tokens:
            return Tree.sequence(tokens)
        n = len(tokens)
        return Tree(
            (*tokens, *self.tokens),
            (*range(-1, n - 1), *(parent + n for parent in self.parents)),
            (*([1.0] * n), *self.values) if self.values else (),
        )

    def valued(self, values: Iterable[float]) -> Tree:
        """This tree with other values."""
        return Tree(self.tokens, self.parents, tuple(values))

    def first(self, n: int) -> Tree:
        """Return the first ``n`` nodes; a tree, since parents stand before their children."""
        return self if n >= len(self.tokens) else Tree(self.tokens[:n], self.parents[:n], self.values[:n])

    def best(self, limit: int) -> Tree:
        """Return the ``limit`` most valuable nodes; a tree again, its likeliest path first.

        A node is worth no more than its parent, so the best nodes always form a tree. The order is depth
        first, best child first: the likeliest path comes to lie where plain decoding would have put it.
        """
        n = len(self.tokens)
        values = self.values or (1.0,) * n
        # Of equal ones the first: sorting is stable.
        chosen = sorted(range(n), key=values.__getitem__, reverse=True)[: max(limit, 0)]
        below: dict[int, list[int]] = {}
        for node in chosen:
            below.setdefault(self.parents[node], []).append(node)
        tokens: list[int] = []
        parents: list[int] = []
        kept: list[float] = []
        stack = [(node, -1) for node in reversed(below.get(-1, []))]
        while stack:
            node, parent = stack.pop()
            place = len(tokens)
            tokens.append(self.tokens[node])
            parents.append(parent)
            kept.append(values[node])
            stack.extend((child, place) for child in reversed(below.get(node, [])))
        return Tree(tuple(tokens), tuple(parents), tuple(kept) if self.values else ())

    def fitted(self, limit: int, n_vocab: int, *, branches: bool) -> Tree:
        """Return what a model can decode of a draft that may be wrong about what a draft is.

        Left out are nodes beyond the limit, tokens outside of the vocabulary, side branches where there must be none,
        and all that hangs below such nodes.
        """
        if len(self) <= limit and (branches or self.is_sequence) and all(0 <= token < n_vocab for token in self.tokens):
            return self
        places = {-1: -1}
        tokens: list[int] = []
        parents: list[int] = []
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            fits = branches or places.get(parent) == len(tokens) - 1
            if parent in places and fits and 0 <= token < n_vocab and len(tokens) < limit:
                places[node] = len(tokens)
                tokens.append(token)
                parents.append(places[parent])
        return Tree(tuple(tokens), tuple(parents))

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return which nodes each node sees, ``[n, n]``: itself and those above it."""
        n = len(self.tokens)
        mask = np.zeros((n, n), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] = mask[parent]
            mask[node, node] = True
        return mask


def best_of_all(drafts: Sequence[Tree], values: Sequence[Sequence[float]], n: int) -> list[Tree]:
    """Return what is left of several trees if the ``n`` most valuable of all their nodes are kept.

    Args:
        values: of the nodes of each tree; as for a tree, none is worth more than its parent.
    """
    counts = {0: n}
    if len(drafts) > 1:
        ordered = sorted(((value, text) for text, own in enumerate(values) for value in own), key=_value, reverse=True)
        counts = Counter(text for _, text in ordered[: max(n, 0)])
    return [
        draft.first(counts[text]) if draft.is_sequence else draft.valued(own).best(counts[text])
        for text, (draft, own) in enumerate(zip(drafts, values, strict=True))
    ]


def _value(node: tuple[float, int]) -> float:
    return node[0]


EMPTY = Tree((), ())
"""A draft without a token."""
