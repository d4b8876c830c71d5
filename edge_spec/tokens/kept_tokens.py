"""The tokens that a model of a trimmed vocabulary knows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["KeptTokens"]


class KeptTokens:
    """Which tokens of a vocabulary the columns of a smaller model's rows stand for.

    Columns are in the order of the ids, so the lowest id among equals is also the lowest column.

    Attributes:
        ids: token id of each column, ascending, ``[n_kept]``.
        n_vocab: size of the whole vocabulary.
        columns: column of each token id, ``[n_vocab]``; ``n_kept`` for tokens that are not kept. That is the smaller
            model's own id of a token: behind the kept tokens it has one that stands for all others.

    Raises:
        ValueError: ids are not ascending or out of range, or there are none.
    """

    def __init__(self, ids: Sequence[int] | npt.NDArray[np.integer], n_vocab: int) -> None:
        self.ids = np.asarray(ids, dtype=np.int64)
        self.n_vocab = n_vocab
        if not len(self.ids) or self.ids[0] < 0 or (np.diff(self.ids) <= 0).any():
            raise ValueError("ids of tokens that are not ascending")
        if self.ids[-1] >= n_vocab:
            raise ValueError(f"the id {self.ids[-1]}, and the vocabulary has {n_vocab} tokens")
        self.columns = np.full(n_vocab, len(self.ids), dtype=np.int32)
        self.columns[self.ids] = np.arange(len(self.ids))

    def __len__(self) -> int:
        return len(self.ids)
