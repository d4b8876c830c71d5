"""What trainings minimize, and what they are judged by; the cross entropy of texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor

from edge_spec.training.head import summed_entropy
from edge_spec.training.model import Llama
from edge_spec.training.modules import Trainable
from edge_spec.training.packing import HEAD, ID, Rows

__all__ = ["LOSS", "Alternation", "Judge", "Objective", "TextLoss", "targets", "to_device"]

LOSS = "valid_loss"
"""The held-out loss in the log of a training."""

M = TypeVar("M", bound=Trainable, contravariant=True)

_SILVER = 2**0.5 - 1


class Objective(Protocol[M]):
    """What a training minimizes."""

    def rows(self, step: int, tokens: int) -> npt.NDArray[Any]:
        """The rows of a step, whole numbers that mean something to it, ``[n, length]`` with ``n * length = tokens``."""

    def learned(self, rows: Tensor) -> Tensor:
        """Return how many tokens of some rows are learned."""

    def loss(self, model: M, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the loss over the learned tokens of some rows, and their number."""


class Judge(Protocol[M]):
    """What a training is judged by on held-out rows."""

    def sums(self, model: M, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Measures by name, each summed over the learned tokens of some rows, and the number of these."""


@dataclass(frozen=True)
class Alternation:
    """Divides steps between two kinds, spread evenly: ``share`` of them are of the first kind.

    Two alternations with different irrational ``ratio`` are independent of each other.
    """

    share: float
    ratio: float

    def first(self, step: int) -> bool:
        """Return whether a step is of the first kind."""
        return (step * self.ratio) % 1 < self.share

    def before(self, step: int) -> int:
        """Return how many earlier steps were of the first kind."""
        return sum(self.first(earlier) for earlier in range(step))


@dataclass(frozen=True)
class TextLoss:
    """Cross entropy of the training text, in nats.

    Attributes:
        batch: returns rows of length ``row``: the number of the first one, and how many.
        short: the same text in shorter rows, which ``share`` of the steps read, since attention costs less in them.
    """

    batch: Callable[[int, int], Rows]
    row: int
    short: TextLoss | None = None
    share: float = 0.0

    def rows(self, step: int, tokens: int) -> Rows:
        kinds = Alternation(self.share, _SILVER)
        if self.short is not None and kinds.first(step):
            return self.short.rows(kinds.before(step), tokens)
        n = tokens // self.row
        return self.batch((step - kinds.before(step)) * n, n)

    def loss(self, model: Llama, rows: Tensor) -> tuple[Tensor, Tensor]:
        hidden, matrix = model.hidden(rows & ID)
        ids, learned = targets(rows)
        return summed_entropy(hidden, matrix, ids, learned), learned.sum()

    def learned(self, rows: Tensor) -> Tensor:
        return targets(rows)[1].sum()

    def sums(self, model: Llama, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        loss, learned = self.loss(model, rows)
        return {LOSS: loss}, learned


def targets(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the token after each token, and whether it is learned; after the last of a row nothing is."""
    after = torch.roll(rows, -1, dims=1)
    learned = (after & HEAD) == 0
    learned[:, -1] = False
    return after & ID, learned


def to_device(rows: npt.NDArray[Any], device: str) -> Tensor:
    """Rows as 64-bit numbers on the device, ids still with their flags."""
    return torch.from_numpy(rows.astype("int64")).to(device, non_blocking=True)
