"""Small models with recurrent layers, written when they are first asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hybrid_shapes import SMALL_HYBRIDS, write_hybrid

__all__ = ["ONLY_LETTERS", "HybridFiles"]

ONLY_LETTERS = {token: float("-inf") for token in range(384) if token not in range(36, 130)}
"""A bias for tokens of a printable byte each, whose text is always read as these tokens."""

_NOISES = {"draft": 0.06, "intermediate": 0.03}


class HybridFiles:
    """Files by name: architectures, and three more like ``qwen35``.

    ``qwen35-draft`` and ``qwen35-intermediate`` guess what it writes; ``qwen35-mtp`` has a layer for further tokens.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Path:
        path = self._folder / f"{name}.gguf"
        if not path.exists():
            architecture, _, role = name.rpartition("-") if name not in SMALL_HYBRIDS else (name, "", "")
            shape = replace(SMALL_HYBRIDS[architecture], mtp=int(role == "mtp"))
            write_hybrid(path, shape, "Q4_0", seed=1, noise=_NOISES.get(role, 0.0))
        return path
