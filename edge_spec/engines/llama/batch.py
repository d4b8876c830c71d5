"""The tokens of one decode as llama.cpp takes them, in arrays that are made once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Batch"]


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
        """The first ``n`` tokens for the library, with or without a row of logits for each."""
        self._with_logits[:n] = logits
        self._raw.n_tokens = n
        return self._raw
