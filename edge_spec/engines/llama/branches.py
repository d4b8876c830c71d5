"""Which sequence ids the cells of a tree carry.

llama.cpp has no trees. It has cells that carry sets of sequence ids, and a token sees the cells that share one
of its ids. So every leaf gets an id of its own, and a node carries the ids of all leaves below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_spec.speculation.tree import Tree

__all__ = ["Branches", "Copy"]


@dataclass(frozen=True, slots=True)
class Copy:
    """Cells of sequence ``source`` up to tree depth ``depth`` (exclusive) become ``target``'s as well."""

    source: int
    target: int
    depth: int


class Branches:
    """Sequence ids for the nodes of a pending tree as it grows.

    The first child of a node continues its parent's id, every other child takes a new one. Nodes above it that are in
    the cache already get the new id by a copy; those of the same decode carry it from the start. Id 0 is the committed
    text and the chain of first children below it.
    """

    def __init__(self, n_sequences: int) -> None:
        self._n_sequences = n_sequences
        self.clear()

    def clear(self) -> None:
        """Forget the tree."""
        self._ids: list[int] = []
        self._continued: set[int] = set()
        self._next = 1

    @property
    def branched(self) -> bool:
        """Whether any id but 0 is in use."""
        return self._next > 1

    def id_of(self, node: int) -> int:
        """The id that a node was decoded with; 0 for -1, the text itself."""
        return self._ids[node] if node >= 0 else 0

    def grow(self, tree: Tree) -> tuple[list[list[int]], list[Copy]]:
        """Ids for the nodes that ``tree`` adds, a list for each, and the copies to make before the decode.

        Raises:
            ValueError: the tree has more leaves than there are sequences.
        """
        first = len(self._ids)
        carried: list[list[int]] = []
        copies: list[Copy] = []
        for node in range(first, len(tree)):
            parent = tree.parents[node]
            own = self.id_of(parent)
            if parent in self._continued:
                if self._next >= self._n_sequences:
                    raise ValueError(f"a tree of more than {self._n_sequences} branches")
                own = self._next
                self._next += 1
                above = parent
                while above >= first:
                    carried[above - first].append(own)
                    above = tree.parents[above]
                depth = tree.depths[above] + 1 if above >= 0 else 0
                copies.append(Copy(self.id_of(above), own, depth))
            self._continued.add(parent)
            self._ids.append(own)
            carried.append([own])
        return carried, copies


def in_plain_order(path: Sequence[int]) -> Sequence[int]:
    """The part of a path, from its beginning, whose nodes lie where plain decoding puts them: node i in place i."""
    n = next((place for place, node in enumerate(path) if node != place), len(path))
    return path[:n]
