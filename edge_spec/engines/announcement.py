"""Says that a model is probed, which takes a moment when it is first loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from edge_spec.engines.records import FOLDER
from edge_spec.engines.settings import ModelSettings
from edge_spec.models import ModelFile

__all__ = ["announce_probe"]

_SMALL_PARAMS = 20_000_000
"""A drafter with fewer parameters is probed too quickly to be worth a sentence."""


def announce_probe(
    file: ModelFile, settings: ModelSettings, on_wait: Callable[[str], None], cache_dir: Path | None
) -> None:
    """Say that a model is probed, if that takes a noticeable time, and that it is not repeated, if that is so."""
    if settings.exact or file.n_params > _SMALL_PARAMS:
        if cache_dir is None:
            once = ""
        elif _is_writable(cache_dir):
            once = " (first time only)"
        else:
            once = f" (at every start: the cache folder {cache_dir} cannot be written)"
        on_wait(f"calibrating {file.path.name} for this device and these settings{once}")


def _is_writable(cache_dir: Path) -> bool:
    try:
        (cache_dir / FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(cache_dir / FOLDER, os.W_OK)
