"""A decode as llama.cpp takes it: tokens in arrays that are made once, and sequence ids in place of trees.

llama.cpp has no trees. It has cells that carry sets of sequence ids, and a token sees the cells that share one
of its ids. So every leaf gets an id of its own, and a node carries the ids of all leaves below it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_spec.speculation.tree import Tree

__all__ = ["Batch", "Branches", "Copy"]


class Batch:
    """The library's batch over arrays of our own, for all decodes of a context.

    Args:
        c: the library's functions.
        n: the most tokens of a decode.
        n_sequences: the most sequence ids of a token.
    """

    def __init__(self, c: Any, n: int, n_sequences: int) -> None:
        self._tokens = np.zeros(n, dtype=np.int32)
        self._positions = np.zeros(n, dtype=np.int32)
        self._n_ids = np.ones(n, dtype=np.int32)
        self._ids = np.zeros((n, n_sequences), dtype=np.int32)
        self._with_logits = np.zeros(n, dtype=np.int8)
        addresses = self._ids.ctypes.data + np.arange(n, dtype=np.uintp) * self._ids.strides[0]
        self._id_pointers = addresses.astype(np.uintp)
        self._raw = c.llama_batch()
        fields = dict(type(self._raw)._fields_)
        for name, array in (
            ("token", self._tokens),
            ("pos", self._positions),
            ("n_seq_id", self._n_ids),
            ("seq_id", self._id_pointers),
            ("logits", self._with_logits),
        ):
            setattr(self._raw, name, ctypes.cast(array.ctypes.data, fields[name]))

    def put_run(self, tokens: Sequence[int], position: int, end: int, *, at: int = 0, sequence: int = 0) -> None:
        """Tokens at consecutive positions of one sequence, the last one repeated up to place ``end`` of the batch.

        Args:
            position: of the first.
            at: its place in the batch.
        """
        n = at + len(tokens)
        self._tokens[at:n] = tokens
        self._tokens[n:end] = tokens[-1]
        self._positions[at:end] = range(position, position + end - at)
        self._n_ids[at:end] = 1
        self._ids[at:end, 0] = sequence

    def put_nodes(self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[Sequence[int]]) -> None:
        """Tokens at the beginning of the batch, each with a position and the ids of its sequences."""
        n = len(tokens)
        self._tokens[:n] = tokens
        self._positions[:n] = positions
        for place, ids in enumerate(sequences):
            self._n_ids[place] = len(ids)
            self._ids[place, : len(ids)] = ids

    def taken(self, n: int, *, logits: bool) -> Any:
        """Return the first ``n`` tokens for the library, with or without a row of logits for each."""
        self._with_logits[:n] = logits
        self._raw.n_tokens = n
        return self._raw


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
        """Return the id that a node was decoded with; 0 for -1, the text itself."""
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
    """Return the beginning of a path whose nodes lie where plain decoding puts them: node i in place i."""
    n = next((place for place, node in enumerate(path) if node != place), len(path))
    return path[:n]
