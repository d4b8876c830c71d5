"""The part of a vocabulary that a model with a smaller table knows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["KeptTokens"]


class KeptTokens:
    """Maps columns of a model's rows to tokens of a larger vocabulary.

    Columns are in the order of the ids, so the lowest id among equals is also the lowest column.

    Args:
        ids: token id of each column, ascending, ``[n_kept]``.
        n_vocab: size of the whole vocabulary.
        own: the other model's own id of each column, ascending, ``[n_kept]``; by default 0, 1, 2, ...
        other: its own id that stands for all tokens that are not kept; by default the one after the kept ones.
        reads_all: the other model reads ids of the whole vocabulary.

    Attributes:
        ids, n_vocab, own: as given.
        columns: column of each token id, ``[n_vocab]``; ``n_kept`` for tokens that are not kept.
        own_ids: the other model's own id of each token id, ``[n_vocab]``.
        picked: where the columns are in a row of the other model: a slice where they follow one another.

    Raises:
        ValueError: ids are not ascending or out of range, or there are none.
    """

    def __init__(
        self,
        ids: Sequence[int] | npt.NDArray[np.integer],
        n_vocab: int,
        *,
        own: Sequence[int] | npt.NDArray[np.integer] | None = None,
        other: int | None = None,
        reads_all: bool = False,
    ) -> None:
        self.ids = np.asarray(ids, dtype=np.int64)
        self.own = np.arange(len(self.ids)) if own is None else np.asarray(own, dtype=np.int64)
        self.n_vocab = n_vocab
        if not len(self.ids) or any(each[0] < 0 or (np.diff(each) <= 0).any() for each in (self.ids, self.own)):
            raise ValueError("ids of tokens that are not ascending")
        if self.ids[-1] >= n_vocab:
            raise ValueError(f"the id {self.ids[-1]}, and the vocabulary has {n_vocab} tokens")
        if len(self.own) != len(self.ids):
            raise ValueError(f"{len(self.own)} own ids for {len(self.ids)} tokens")
        self.columns = np.full(n_vocab, len(self.ids), dtype=np.int32)
        self.columns[self.ids] = np.arange(len(self.ids))
        self.own_ids = np.full(n_vocab, self.own[-1] + 1 if other is None else other, dtype=np.int32)
        self.own_ids[self.ids] = self.own
        if reads_all:
            self.own_ids = np.arange(n_vocab, dtype=np.int32)
        first, last = int(self.own[0]), int(self.own[-1])
        self.picked: slice | npt.NDArray[np.int64] = self.own
        if last - first + 1 == len(self.own):
            self.picked = slice(first, last + 1)

    def __len__(self) -> int:
        return len(self.ids)
