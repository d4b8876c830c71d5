"""Numerics profiles before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edge_spec.engines import registry
from edge_spec.engines.llama import LlamaSettings
from edge_spec.models import ModelFile
from edge_spec.speculation.language_model import NumericsProfile

__all__ = ["planned_profile"]


def planned_profile(
    file: ModelFile, engine: str, settings: LlamaSettings, *, trees: bool, cache_dir: Path | None
) -> NumericsProfile | None:
    """The profile that a target will have.

    Which rows round alike is found out by trying, once for each file, engine, device and settings; None before.

    Args:
        cache_dir: where is kept what was tried.
    """
    return registry.engine(engine).profile(file, replace(settings, trees=trees), cache_dir=cache_dir)
