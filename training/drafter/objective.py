"""What the training of a small model minimizes: how far its distributions are from those that the target had."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edge_spec.training.drafter.rows import AnswerRows
from edge_spec.training.head import summed_sparse_divergence
from edge_spec.training.model import Llama
from edge_spec.training.objective import LOSS

__all__ = ["AnswerLoss"]


@dataclass
class AnswerLoss(AnswerRows):
    """Kullback-Leibler divergence from the target's distributions over what the drafter knows, in nats."""

    def loss(self, model: Llama, rows: Tensor) -> tuple[Tensor, Tensor]:
        places = rows.cpu().numpy()
        expected, device = self.expected(places), rows.device
        wanted = expected[expected >= 0]
        hidden, matrix = model.hidden(self.tokens(places, device))
        hidden = hidden[torch.from_numpy(expected >= 0).to(device)]
        return summed_sparse_divergence(hidden, matrix, *self.distributions(wanted, device)), torch.tensor(len(wanted))

    def sums(self, model: Llama, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        loss, learned = self.loss(model, rows)
        return {LOSS: loss}, learned
