"""Files of shapes by name, written where they are not there yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gemma4_shapes import E2B, write_gemma4
from hybrid_shapes import HYBRIDS, SMALL_HYBRIDS, write_hybrid
from model_shapes import SHAPES, write_shape

__all__ = ["SHAPE_NAMES", "shape_file"]

SHAPE_NAMES = (*SHAPES, *HYBRIDS, *SMALL_HYBRIDS, "gemma4-e2b")


def shape_file(folder: Path, name: str, kind: str) -> Path:
    """The file of a shape, its matrices of type ``kind``; written if it does not exist."""
    path = folder / f"{name}-{kind.lower()}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _writer(name, kind)(path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
    return path


def _writer(name: str, kind: str) -> Callable[[Path], Path]:
    if name == "gemma4-e2b":
        return lambda path: write_gemma4(path, E2B, kind, seed=None)
    if name in SHAPES:
        return lambda path: write_shape(path, SHAPES[name], kind)
    if name in HYBRIDS:
        return lambda path: write_hybrid(path, HYBRIDS[name], kind)
    return lambda path: write_hybrid(path, SMALL_HYBRIDS[name], kind, seed=1)
