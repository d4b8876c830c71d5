"""What a head learns from answers that the target reads while it learns: nothing of them is stored but their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from edge_spec.training.drafter.head_objective import Expected, HeadObjective
from edge_spec.training.drafter.torch_target import TorchTarget
from edge_spec.training.head import summed_whole_divergence

__all__ = ["ReadLoss"]

_AT_ONCE = 1 << 12
"""Places whose chances over the target's whole vocabulary exist at once."""


@dataclass(frozen=True)
class _AllExpected:
    """Chances of all tokens that a head knows, and of those that it does not together, ``[n, n_vocab]``."""

    chances: Tensor

    @property
    def likeliest(self) -> Tensor:
        return self.chances.argmax(1)

    def divergence(self, rows: Tensor, matrix: Tensor) -> Tensor:
        return summed_whole_divergence(rows, matrix, self.chances)


@dataclass(kw_only=True)
class ReadLoss(HeadObjective):
    """As ``HeadLoss``, with whole distributions.

    Args:
        target: reads the texts of every step.
        ids: the target's ids of ``answers.tokens``.
    """

    target: TorchTarget
    ids: npt.NDArray[Any]

    def reading(self, rows: Tensor) -> tuple[Tensor, Expected]:
        places, device = rows.cpu().numpy(), rows.device
        texts = self.texts_at(places)
        ids = torch.from_numpy(self.ids[places].astype(np.int64)).to(device)
        hidden, last = self.target.read(ids, torch.from_numpy(texts).to(device))
        # Of a text's tokens, all but the first stand right behind the one before.
        follows = torch.from_numpy((places > self.answers.begins[texts]) & (places >= 0)).to(device)
        features = functional.pad(hidden[:, :-1], (0, 0, 1, 0)) * follows[..., None]
        learned = torch.from_numpy(self.expected(places) >= 0).to(device)
        return features, _AllExpected(self._chances(last[learned]))

    def _chances(self, last: Tensor) -> Tensor:
        kept = torch.from_numpy(self.answers.kept).to(last.device)
        found = torch.empty((len(last), len(kept) + 1), device=last.device)
        with torch.autocast(last.device.type, enabled=False):
            for rows, into in zip(last.split(_AT_ONCE), found.split(_AT_ONCE), strict=True):
                chances = functional.linear(rows, self.target.output).float().softmax(-1)
                into[:, :-1] = chances[:, kept]
                into[:, -1] = (1 - into[:, :-1].sum(1)).clamp(min=0)
        return found
