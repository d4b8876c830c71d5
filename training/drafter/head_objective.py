"""What the training of a head minimizes."""

from __future__ import annotations

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

__all__ = ["HeadLoss", "RowsByPlace"]

_LATER = 0.8
"""How much a step counts, as a share of the step before."""
_AT_ONCE = 512
"""Tokens whose logits exist at once."""


class RowsByPlace(Protocol):
    """Hidden states of the tokens of all texts, one after the other."""

    def __getitem__(self, places: Places) -> npt.NDArray[np.float16]:
        """Return the rows of some tokens, ``[*places, 3 * width]``."""


@dataclass(kw_only=True)
class HeadLoss(AnswerRows):
    """Kullback-Leibler divergence from the target's distributions, in nats: the weighted mean of drafting one, two and
    more tokens behind what the target has read.

    Args:
        hidden: the target's hidden states of ``answers.tokens``, read where they are needed.
        steps: how many tokens ahead are learned.
    """

    hidden: RowsByPlace
    steps: int

    def loss(self, model: Head, rows: Tensor) -> tuple[Tensor, Tensor]:
        outputs, learned, columns, chances = self.read(model, rows)
        weights = [_LATER**step for step in range(self.steps)]
        total = torch.zeros((), device=rows.device)
        for weight, output in zip(weights, outputs, strict=True):
            total = total + weight * summed_sparse_divergence(output[learned], model.output, columns, chances)
        return total / sum(weights), learned.sum()

    def sums(self, model: Head, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the divergence at every step, and how often the likeliest token is the target's."""
        outputs, learned, columns, chances = self.read(model, rows)
        likeliest = columns.gather(1, chances.argmax(1, keepdim=True))[:, 0]
        measures = {LOSS: torch.zeros((), device=rows.device)}
        weights = [_LATER**step for step in range(self.steps)]
        for step, (weight, output) in enumerate(zip(weights, outputs, strict=True), 1):
            divergence, agreed = torch.zeros((), device=rows.device), torch.zeros((), device=rows.device)
            parts = (each.split(_AT_ONCE) for each in (output[learned], columns, chances, likeliest))
            for some, column, chance, first in zip(*parts, strict=True):
                log_p = torch.log_softmax(functional.linear(some, model.output).float(), dim=-1)
                divergence += (chance * (chance.clamp(min=1e-30).log() - log_p.gather(1, column))).sum()
                # What it does not know cannot be drafted, so that never agrees.
                agreed += ((log_p.argmax(1) == first) & (first < model.shape.n_vocab - 1)).sum()
            measures[LOSS] += divergence * weight / sum(weights)
            measures[f"loss_{step}"], measures[f"agreement_{step}"] = divergence, agreed
        return measures, learned.sum()

    def read(self, model: Head, rows: Tensor) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
        """Inputs of the output rows by steps; where something is learned, and what."""
        places, device = rows.cpu().numpy(), rows.device
        expected = self.expected(places)
        kind = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32
        texts = torch.from_numpy(self._texts(places)).to(device)
        learned = torch.from_numpy(expected >= 0).to(device)
        outputs = model.ahead(self.tokens(places, device), self.features(rows).to(kind), texts, self.steps, learned)
        return outputs, learned, *self.distributions(expected[expected >= 0], device)

    def features(self, rows: Tensor) -> Tensor:
        """Return the target's rows of the token before each place, ``[rows, n, 3 * width]``.

        Zeros before a text's first.
        """
        places = rows.cpu().numpy()
        none = (places < 0) | (places == self.answers.begins[self._texts(places)])
        found = torch.from_numpy(self.hidden[np.where(none, 0, places - 1)])
        found[torch.from_numpy(none)] = 0
        return found.to(rows.device)

    def _texts(self, places: Places) -> npt.NDArray[np.int64]:
        """Return the text of each place; -1 where no token is."""
        return np.searchsorted(self.answers.begins, places, side="right") - 1
