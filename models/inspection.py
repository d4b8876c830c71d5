"""Inspect a model file of either kind."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from edge_spec.models.gguf.inspection import inspect_gguf, inspect_safetensors_head
from edge_spec.models.model_file import ModelFile
from edge_spec.models.recommended_sampling import of_edge_spec
from edge_spec.models.safetensors_head import SUFFIX

__all__ = ["inspect", "is_published"]


def inspect(path: str | os.PathLike[str]) -> ModelFile:
    """Inspect a model file, a GGUF, a published ONNX graph or a head in safetensors, without loading it.

    The fingerprint hashes the sizes of the files, everything but the weights, and up to 4 KiB from the middle of each
    tensor: a few megabytes instead of everything. Retraining or requantizing a tensor changes it, but an edit of a few
    bytes elsewhere goes unnoticed: it identifies what is cached and is not a signature.

    Raises:
        ModelNotFound, NotAModel, TruncatedModel, UnsupportedModel: it cannot be used; see ``inspect_gguf``,
            ``inspect_safetensors_head`` and ``inspect_published``.
    """
    if is_published(path):
        from edge_spec.models.onnx.inspection import inspect_published

        file = inspect_published(path)
    elif Path(path).suffix.lower() == SUFFIX:
        file = inspect_safetensors_head(path)
    else:
        file = inspect_gguf(path)
    ours = of_edge_spec(file.fingerprint)
    return replace(file, sampling=ours, sampling_by="edge-spec") if ours else file


def is_published(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of an ONNX graph, or of a folder with one, by its name alone."""
    return Path(path).suffix == ".onnx" or Path(path).is_dir()
