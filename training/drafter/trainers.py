"""The trainer of either kind of drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from edge_spec.models import ModelFile
from edge_spec.training.clock import Clock
from edge_spec.training.distill import inherit_embedding
from edge_spec.training.drafter.answers import Answers, divided
from edge_spec.training.drafter.head_model import Head
from edge_spec.training.drafter.head_objective import HeadLoss
from edge_spec.training.drafter.heads import build_head, continue_head, start_head
from edge_spec.training.drafter.hidden import StoredRows
from edge_spec.training.drafter.objective import AnswerLoss
from edge_spec.training.drafter.rows import packed, packed_whole
from edge_spec.training.drafter.settings import MakeSettings
from edge_spec.training.drafter.target_rows import embedding_rows
from edge_spec.training.model import Llama
from edge_spec.training.train import Trainer

__all__ = ["DrafterTraining", "head_trainer", "model_trainer"]

_VALID_ROWS = 64
_VALID_EVERY = 100


@dataclass(frozen=True, kw_only=True)
class DrafterTraining:
    """What the training of a drafter of either kind needs.

    Attributes:
        target: the model that it will draft for.
        answers: the target's, from which it learns.
        folder: where the training is saved.
        device: PyTorch's name of what trains.
        clock: says when to save and stop.
        say: called with each line about its progress.
        head: which a head begins with; None for one that has learned nothing.
    """

    target: ModelFile
    answers: Answers
    settings: MakeSettings
    folder: Path
    device: str
    clock: Clock
    say: Callable[[str], None]
    head: ModelFile | None = None

    def common(self) -> dict[str, Any]:
        """Arguments of ``Trainer`` that do not depend on the kind."""
        return {
            "folder": self.folder,
            "training": self.settings.training(len(self.answers.tokens), continued=self.head is not None),
            "seed": self.settings.seed,
            "device": self.device,
            "clock": self.clock,
            "say": self.say,
        }


def model_trainer(of: DrafterTraining) -> tuple[Trainer[Llama], bool]:
    """Return the trainer of a small model; and whether it begins with the target's embedding."""
    target, answers, settings = of.target, of.answers, of.settings
    learned, valid = divided(of.answers, of.settings.seed)
    objective = AnswerLoss(
        answers=answers,
        texts=learned,
        row=settings.row,
        short_row=settings.short_row,
        short_share=settings.short_share,
        seed=settings.seed,
    )
    trainer = Trainer(
        build=lambda: Llama(settings.shape(target.n_vocab)),
        objective=objective,
        judge=objective,
        valid=packed(answers.begins, valid, settings.short_row)[:_VALID_ROWS],
        **of.common(),
    )
    embedding = embedding_rows(target, answers.kept) if settings.inherit else None
    if embedding is not None:
        trainer.start = partial(inherit_embedding, torch.from_numpy(embedding))
    return trainer, embedding is not None


def head_trainer(of: DrafterTraining, portions: Path) -> Trainer[Head]:
    """Return the trainer of a head on hidden states.

    Args:
        portions: of the answers, with hidden states beside them.
    """
    target, answers, settings = of.target, of.answers, of.settings
    learned, valid = divided(of.answers, of.settings.seed)
    row = min(settings.head_row, target.n_ctx_train)
    objective = HeadLoss(
        answers=answers,
        texts=learned,
        row=row,
        short_row=row,
        short_share=0.0,
        seed=settings.seed,
        whole=True,
        hidden=StoredRows(portions, len(answers.tokens)),
        steps=settings.steps_ahead,
    )
    return Trainer(
        build=lambda: build_head(target, answers.kept),
        start=partial(start_head, objective) if of.head is None else partial(continue_head, of.head),
        objective=objective,
        judge=objective,
        valid=packed_whole(answers.begins, valid, row)[:_VALID_ROWS],
        **of.common(),
        valid_every=_VALID_EVERY,
    )
