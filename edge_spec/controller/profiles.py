"""Numerics profiles before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from edge_spec.engines.llama import LlamaSettings, planned_llama
from edge_spec.engines.onnx import planned_onnx
from edge_spec.engines.role_settings import llama_settings, onnx_settings
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
    if engine == "onnx":
        return planned_onnx(file, onnx_settings("target", file, settings, trees=trees), cache_dir=cache_dir)
    own = llama_settings("target", file, settings, trees=trees)
    return planned_llama(own, file=file.fingerprint, head_dim_k=file.head_dim_k, cache_dir=cache_dir)
