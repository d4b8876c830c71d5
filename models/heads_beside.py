"""Heads in files beside a model, as publishers name them: ``eagle3-NAME.gguf`` or ``mtp-NAME.gguf`` in its folder.

A head in safetensors has its settings beside it, so it lies in a folder of its own: ``eagle3-NAME/model.safetensors``.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from edge_spec.models.head_facts import EAGLE3
from edge_spec.models.safetensors_head import SUFFIX
from edge_spec.models.split_files import is_gguf

__all__ = ["heads_beside", "safetensors_in"]

_MARKS = (f"{EAGLE3}-", "mtp-")


def heads_beside(target: Path) -> list[Path]:
    """Return the files that are named like heads of a model, by name, whether they fit it or not."""
    found: list[Path] = []
    with suppress(OSError):
        for path in sorted(target.parent.iterdir()):
            if any(mark in path.name.lower() for mark in _MARKS) and path.name != target.name:
                inside = safetensors_in(path) if path.is_dir() else None
                found += [path] if is_gguf(path) and path.is_file() else [inside] if inside is not None else []
    return found


def safetensors_in(folder: Path) -> Path | None:
    """Return the only file of tensors in a folder; None if there is none, or if there are several."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() == SUFFIX and path.is_file())
    return found[0] if len(found) == 1 else None
