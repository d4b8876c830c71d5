"""Which of the target's answers a step of a training reads, and what is to be learned there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edge_spec.training.drafter.answers import Answers
from edge_spec.training.objective import Alternation

__all__ = ["AnswerRows", "Places", "packed", "packed_whole"]

_RATIO = 2**0.5 - 1
_LEAST = 64
"""A text that does not fit is begun in a row all the same if so many of its tokens fit."""
_OPEN = 16
"""Rows that a whole text may still be put into."""

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


def packed_whole(begins: npt.NDArray[np.int64], order: npt.NDArray[np.int64], row: int) -> Places:
    """Texts in rows as by ``packed``, but none is cut that fits a row: each goes into the fullest row with room."""
    closed: list[list[Places]] = []
    open_rows: list[tuple[int, list[Places]]] = []
    for text in order.tolist():
        places = np.arange(begins[text], min(begins[text + 1], begins[text] + row))
        fitting = [number for number, (room, _) in enumerate(open_rows) if room >= len(places)]
        if fitting:
            room, row_of = open_rows.pop(min(fitting, key=lambda number: open_rows[number][0]))
        else:
            room, row_of = row, []
        row_of.append(places)
        open_rows.append((room - len(places), row_of))
        if len(open_rows) > _OPEN:
            fullest = min(range(len(open_rows)), key=lambda number: open_rows[number][0])
            closed.append(open_rows.pop(fullest)[1])
    closed += [row_of for _, row_of in open_rows]
    found = np.full((len(closed), row), _PADDING, np.int64)
    for line, row_of in zip(found, closed, strict=True):
        together = np.concatenate(row_of)
        line[: len(together)] = together
    return found


@dataclass
class AnswerRows:
    """Rows of the target's answers; a row is places in ``answers.tokens``.

    Args:
        texts: numbers of the texts to learn from.
        row, short_row, short_share: see ``MakeSettings``.
        whole: cut no text that fits a row.
    """

    answers: Answers
    texts: npt.NDArray[np.int64]
    row: int
    short_row: int
    short_share: float
    seed: int
    whole: bool = False
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
            pack = packed_whole if self.whole else packed
            rows = pack(self.answers.begins, random.permutation(self.texts), row)
            self._packed[row] = number, rows[random.permutation(len(rows))]
        return self._packed[row][1]

    def learned(self, rows: Tensor) -> Tensor:
        return torch.tensor(int((self.expected(rows.cpu().numpy()) >= 0).sum()))

    def expected(self, places: Places) -> npt.NDArray[np.int32]:
        """Of each place the row of ``answers.columns`` that says what follows; -1 where nothing is to be learned."""
        expected: npt.NDArray[np.int32] = np.where(places >= 0, self.answers.expected[places], -1)
        return expected

    def texts_at(self, places: Places) -> npt.NDArray[np.int64]:
        """Return the text of each place; -1 where no token is."""
        return np.searchsorted(self.answers.begins, places, side="right") - 1

    def tokens(self, places: Places, device: torch.device) -> Tensor:
        """Ids of the tokens at some places."""
        return torch.from_numpy(self.answers.tokens[places].astype(np.int64)).to(device)

    def distributions(self, wanted: npt.NDArray[np.int32], device: torch.device) -> tuple[Tensor, Tensor]:
        """Columns and chances of some rows, each ``[n, 65]``."""
        columns = torch.from_numpy(self.answers.columns[wanted].astype(np.int64)).to(device)
        chances = torch.from_numpy(self.answers.chances[wanted].astype(np.float32)).to(device)
        return columns, chances / chances.sum(1, keepdim=True)
