"""The trainer of either kind of drafter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_spec.models import ModelFile
from edge_spec.training.clock import Clock
from edge_spec.training.distill import inherit_embedding
from edge_spec.training.drafter.answers import Answers
from edge_spec.training.drafter.head_model import Head
from edge_spec.training.drafter.head_objective import HeadLoss
from edge_spec.training.drafter.heads import build_head, start_head
from edge_spec.training.drafter.hidden import StoredRows
from edge_spec.training.drafter.objective import AnswerLoss
from edge_spec.training.drafter.rows import packed, packed_whole
from edge_spec.training.drafter.settings import MakeSettings
from edge_spec.training.drafter.target_rows import embedding_rows
from edge_spec.training.model import Llama
from edge_spec.training.train import Trainer

__all__ = ["head_trainer", "model_trainer"]

_VALID_SHARE, _VALID_ROWS = 100, 64
_VALID_EVERY = 100

Texts = np.ndarray[Any, np.dtype[np.int64]]


def model_trainer(
    target: ModelFile,
    answers: Answers,
    settings: MakeSettings,
    folder: Path,
    *,
    device: str,
    clock: Clock,
    say: Callable[[str], None],
) -> tuple[Trainer[Llama], bool]:
    """Of a small model; and whether it begins with the target's embedding."""
    learned, valid = _divided(answers, settings)
    objective = AnswerLoss(
        answers=answers,
        texts=learned,
        row=settings.row,
        short_row=settings.short_row,
        short_share=settings.short_share,
        seed=settings.seed,
    )
    trainer = Trainer(
        folder=folder,
        build=lambda: Llama(settings.shape(target.n_vocab)),
        training=settings.training(len(answers.tokens)),
        objective=objective,
        judge=objective,
        valid=packed(answers.begins, valid, settings.short_row)[:_VALID_ROWS],
        seed=settings.seed,
        device=device,
        clock=clock,
        say=say,
    )
    embedding = embedding_rows(target, answers.kept) if settings.inherit else None
    if embedding is not None:
        trainer.start = partial(inherit_embedding, torch.from_numpy(embedding))
    return trainer, embedding is not None


def head_trainer(
    target: ModelFile,
    answers: Answers,
    settings: MakeSettings,
    portions: Path,
    folder: Path,
    *,
    device: str,
    clock: Clock,
    say: Callable[[str], None],
) -> Trainer[Head]:
    """Of a head on hidden rows.

    Args:
        portions: of the answers, with hidden rows beside them.
    """
    learned, valid = _divided(answers, settings)
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
        folder=folder,
        build=lambda: build_head(target, answers.kept),
        start=partial(start_head, objective),
        training=settings.training(len(answers.tokens)),
        objective=objective,
        judge=objective,
        valid=packed_whole(answers.begins, valid, row)[:_VALID_ROWS],
        seed=settings.seed,
        device=device,
        clock=clock,
        say=say,
        valid_every=_VALID_EVERY,
    )


def _divided(answers: Answers, settings: MakeSettings) -> tuple[Texts, Texts]:
    """Texts to learn from, and held-out ones."""
    order = np.random.default_rng(settings.seed).permutation(len(answers.begins) - 1)
    n_valid = max(1, len(order) // _VALID_SHARE)
    return order[n_valid:] if len(order) > n_valid else order, order[:n_valid]
