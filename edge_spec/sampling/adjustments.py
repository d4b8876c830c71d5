"""What changes logits before the filters: bias, penalties for the text so far, DRY."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from edge_spec.errors import SettingsError
from edge_spec.sampling.dry import Breakers, dry_penalties
from edge_spec.sampling.rows import Row
from edge_spec.sampling.settings import SamplerSettings

__all__ = ["adjusted", "adjusts"]


def adjusts(settings: SamplerSettings) -> bool:
    """Whether these settings change any row."""
    return bool(settings.logit_bias) or settings.uses_penalties or settings.uses_dry


def adjusted(row: Row, text: Sequence[int], settings: SamplerSettings, breakers: Breakers) -> Row:
    """A copy of a row, ``[n_vocab]``, after logit bias, penalties and DRY, in this order.

    Args:
        text: prompt and reply so far.
        breakers: see ``find_breakers``.

    Raises:
        SettingsError: ``logit_bias`` names a token beyond the row.
    """
    row = row.copy()
    # A bias may be added to infinities and the largest floats; ``peak`` handles what comes of it.
    with np.errstate(over="ignore", invalid="ignore"):
        if settings.logit_bias:
            _bias(row, settings)
        if settings.uses_penalties:
            _penalise(row, text, settings)
        if settings.uses_dry:
            penalties = dry_penalties(text, settings, breakers)
            if penalties:
                row[list(penalties)] -= np.fromiter(penalties.values(), dtype=np.float32)
    return row


def _bias(row: Row, settings: SamplerSettings) -> None:
    bias = settings.logit_bias
    ids = np.fromiter(bias, dtype=np.int64)
    if ids.max() >= row.shape[0]:
        raise SettingsError(f"names token {ids.max()}; this model has {row.shape[0]} tokens", argument="logit_bias")
    row[ids] += np.fromiter(bias.values(), dtype=np.float32)


def _penalise(row: Row, text: Sequence[int], settings: SamplerSettings) -> None:
    counts = Counter(text if settings.penalty_window < 0 else text[-settings.penalty_window :])
    ids = np.fromiter(counts, dtype=np.int64)
    x = row[ids]
    penalty = np.float32(settings.repeat_penalty)
    x = np.where(x <= 0, x * penalty, x / penalty)
    x -= np.fromiter(counts.values(), dtype=np.float32) * np.float32(settings.frequency_penalty)
    x -= np.float32(settings.presence_penalty)
    row[ids] = x
