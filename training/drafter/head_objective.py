"""What the training of a head minimizes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from edge_spec.training.drafter.head_model import Head
from edge_spec.training.drafter.rows import AnswerRows, Places
from edge_spec.training.head import summed_sparse_divergence
from edge_spec.training.objective import LOSS

__all__ = ["Expected", "FewExpected", "HeadLoss", "HeadObjective", "RowsByPlace"]

_LATER = 0.8
"""How much a step counts, as a share of the step before."""
_AT_ONCE = 512
"""Tokens whose logits exist at once."""


class RowsByPlace(Protocol):
    """Hidden states of the tokens of all texts, one after the other."""

    def __getitem__(self, places: Places) -> npt.NDArray[np.float16]:
        """Return the rows of some tokens, ``[*places, 3 * width]``."""


class Expected(Protocol):
    """What a target expected in some places."""

    @property
    def likeliest(self) -> Tensor:
        """The likeliest token of each place, in the head's ids."""

    def divergence(self, rows: Tensor, matrix: Tensor) -> Tensor:
        """Kullback-Leibler divergence from it, summed over the places, in nats.

        Args:
            rows: inputs of the output rows, ``[n, width]``.
            matrix: the output rows, ``[n_vocab, width]``.
        """


@dataclass(frozen=True)
class FewExpected:
    """The likeliest tokens alone: ``columns`` and their ``chances``, each ``[n, k]``."""

    columns: Tensor
    chances: Tensor

    @property
    def likeliest(self) -> Tensor:
        return self.columns.gather(1, self.chances.argmax(1, keepdim=True))[:, 0]

    def divergence(self, rows: Tensor, matrix: Tensor) -> Tensor:
        return summed_sparse_divergence(rows, matrix, self.columns, self.chances)


@dataclass(kw_only=True)
class HeadObjective(AnswerRows):
    """Kullback-Leibler divergence from the target's distributions, in nats: the weighted mean of drafting one, two and
    more tokens behind what the target has read.

    Args:
        steps: how many tokens ahead are learned.
    """

    steps: int

    @abstractmethod
    def reading(self, rows: Tensor) -> tuple[Tensor, Expected]:
        """Return the target's rows of the token before each place, ``[rows, n, 3 * width]``, and what it expected.

        Rows are zeros before a text's first token; expected is what follows the places where something is learned.
        """

    def loss(self, model: Head, rows: Tensor) -> tuple[Tensor, Tensor]:
        outputs, learned, expected = self.read(model, rows)
        weights = [_LATER**step for step in range(self.steps)]
        total = torch.zeros((), device=rows.device)
        for weight, output in zip(weights, outputs, strict=True):
            total = total + weight * expected.divergence(output[learned], model.output)
        return total / sum(weights), learned.sum()

    def sums(self, model: Head, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the divergence at every step, and how often the likeliest token is the target's."""
        outputs, learned, expected = self.read(model, rows)
        measures = {LOSS: torch.zeros((), device=rows.device)}
        weights = [_LATER**step for step in range(self.steps)]
        for step, (weight, output) in enumerate(zip(weights, outputs, strict=True), 1):
            divergence = expected.divergence(output[learned], model.output)
            agreed = torch.zeros((), device=rows.device)
            parts = (output[learned].split(_AT_ONCE), expected.likeliest.split(_AT_ONCE))
            for some, first in zip(*parts, strict=True):
                picked = functional.linear(some, model.output).argmax(1)
                # What it does not know cannot be drafted, so that never agrees.
                agreed += ((picked == first) & (first < model.shape.n_vocab - 1)).sum()
            measures[LOSS] += divergence * weight / sum(weights)
            measures[f"loss_{step}"], measures[f"agreement_{step}"] = divergence, agreed
        return measures, learned.sum()

    def read(self, model: Head, rows: Tensor) -> tuple[list[Tensor], Tensor, Expected]:
        """Inputs of the output rows by steps; where something is learned, and what."""
        features, expected = self.reading(rows)
        return *self.ahead(model, rows, features), expected

    def ahead(self, model: Head, rows: Tensor, features: Tensor) -> tuple[list[Tensor], Tensor]:
        """Inputs of the output rows by steps, from what ``reading`` returned; and where something is learned."""
        places, device = rows.cpu().numpy(), rows.device
        kind = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32
        texts = torch.from_numpy(self.texts_at(places)).to(device)
        learned = torch.from_numpy(self.expected(places) >= 0).to(device)
        return model.ahead(self.tokens(places, device), features.to(kind), texts, self.steps, learned), learned


@dataclass(kw_only=True)
class HeadLoss(HeadObjective):
    """What a head learns from stored answers.

    Args:
        hidden: the target's hidden states of ``answers.tokens``, read where they are needed.
    """

    hidden: RowsByPlace

    def reading(self, rows: Tensor) -> tuple[Tensor, Expected]:
        places = rows.cpu().numpy()
        none = (places < 0) | (places == self.answers.begins[self.texts_at(places)])
        found = torch.from_numpy(self.hidden[np.where(none, 0, places - 1)])
        found[torch.from_numpy(none)] = 0
        expected = self.expected(places)
        return found.to(rows.device), FewExpected(*self.distributions(expected[expected >= 0], rows.device))
