"""What the trainer minimizes: how far the drafter's distributions are from those that the target had."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edge_spec.training.drafter.answers import Answers
from edge_spec.training.head import summed_sparse_divergence
from edge_spec.training.model import Llama
from edge_spec.training.train import Alternation

__all__ = ["AnswerLoss", "packed"]

_RATIO = 2**0.5 - 1
_LEAST = 64
"""A text that does not fit is begun in a row all the same if so many of its tokens fit."""

_PADDING = -1

Places = npt.NDArray[np.int64]


def packed(begins: npt.NDArray[np.int64], order: npt.NDArray[np.int64], row: int) -> Places:
    """Texts in rows, as places of their tokens, ``[n, row]``; -1 where a row has none.

    Every text begins whole; what does not fit the rest of its row is left out, in another order another part.
    """
    rows: list[Places] = []
    current, room = np.full(row, _PADDING, np.int64), row
    for text in order.tolist():
        begin, end = int(begins[text]), int(begins[text + 1])
        if room < min(_LEAST, end - begin):
            rows.append(current)
            current, room = np.full(row, _PADDING, np.int64), row
        n = min(room, end - begin)
        current[row - room : row - room + n] = np.arange(begin, begin + n)
        room -= n
    return np.stack([*rows, current])


@dataclass
class AnswerLoss:
    """Kullback-Leibler divergence from the target's distributions over what the drafter knows, in nats.

    A row is places in ``answers.tokens``.

    Args:
        texts: numbers of the texts to learn from.
        row, short_row, short_share: see ``MakeSettings``.
    """

    answers: Answers
    texts: npt.NDArray[np.int64]
    row: int
    short_row: int
    short_share: float
    seed: int
    _packed: dict[int, tuple[int, Places]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)

    def rows(self, step: int, tokens: int) -> Places:
        kinds = Alternation(self.short_share, _RATIO)
        n_short = kinds.before(step)
        if kinds.first(step):
            return self._batch(self.short_row, n_short * (tokens // self.short_row), tokens // self.short_row)
        return self._batch(self.row, (step - n_short) * (tokens // self.row), tokens // self.row)

    def _batch(self, row: int, first: int, n: int) -> Places:
        """Rows ``first`` to ``first + n`` of all passes over the texts."""
        found = np.empty((n, row), np.int64)
        if row not in self._sizes:
            self._sizes[row] = len(self._pass(row, 0))
        for place in range(n):
            number, which = divmod(first + place, self._sizes[row])
            rows = self._pass(row, number)
            # Another order may need a row more or less.
            found[place] = rows[which % len(rows)]
        return found

    def _pass(self, row: int, number: int) -> Places:
        if row not in self._packed or self._packed[row][0] != number:
            random = np.random.default_rng((self.seed, row, number))
            rows = packed(self.answers.begins, random.permutation(self.texts), row)
            self._packed[row] = number, rows[random.permutation(len(rows))]
        return self._packed[row][1]

    def learned(self, rows: Tensor) -> Tensor:
        return torch.tensor(int((self._expected(rows.cpu().numpy()) >= 0).sum()))

    def _expected(self, places: Places) -> npt.NDArray[np.int32]:
        expected: npt.NDArray[np.int32] = np.where(places >= 0, self.answers.expected[places], -1)
        return expected

    def loss(self, model: Llama, rows: Tensor) -> tuple[Tensor, Tensor]:
        places = rows.cpu().numpy()
        expected, device = self._expected(places), rows.device
        wanted = expected[expected >= 0]
        hidden, matrix = model.hidden(torch.from_numpy(self.answers.tokens[places].astype(np.int64)).to(device))
        hidden = hidden[torch.from_numpy(expected >= 0).to(device)]
        columns = torch.from_numpy(self.answers.columns[wanted].astype(np.int64)).to(device)
        chances = torch.from_numpy(self.answers.chances[wanted].astype(np.float32)).to(device)
        chances = chances / chances.sum(1, keepdim=True)
        return summed_sparse_divergence(hidden, matrix, columns, chances), torch.tensor(len(wanted))
