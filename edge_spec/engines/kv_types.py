"""Smaller types for cached keys and values, the gentlest first."""

from __future__ import annotations

from collections.abc import Collection

from edge_spec.engines.llama import LlamaSettings
from edge_spec.engines.onnx.transcription import ATTENTION_HEADS
from edge_spec.engines.role_settings import onnx_settings
from edge_spec.models import ModelFile
from edge_spec.models.kv_cache import kv_cache_bytes

__all__ = ["ROUNDS_VISIBLY", "smaller_kv"]

ROUNDS_VISIBLY = "q4_0"
"""The type that is not taken before much of the context has been given up."""

_BLOCK = 32
"""Quantised types pack so many numbers of one head together."""


def smaller_kv(
    file: ModelFile, engine: str, settings: LlamaSettings, fixed: Collection[str] = ()
) -> list[tuple[str, str]]:
    """Types of keys and values that take less than those of ``settings``, each less than the one before.

    With llama.cpp 8 bits, whose rounding hardly shows, and 4 bits, whose rounding does. On ONNX Runtime halves, where
    our attention reads the cache; a published graph brings its own type.

    Args:
        fixed: names of settings that the user gave.
    """
    if not {"kv_k", "kv_v"}.isdisjoint(fixed):
        return []
    if engine == "onnx":
        now = onnx_settings("target", file, settings, trees=False).kv
        own = file.graph is None and file.head_dim_k in ATTENTION_HEADS
        return [("f16", "f16")] if own and now == "f32" else []
    if not settings.flash_attention or file.head_dim_k % _BLOCK or file.head_dim_v % _BLOCK:
        return []
    shown = settings.for_heads(file.head_dim_k)
    found, least = [], _cell_bytes(file, shown.kv_k, shown.kv_v)
    for kind in ("q8_0", ROUNDS_VISIBLY):
        if _cell_bytes(file, kind, kind) < least:
            found.append((kind, kind))
            least = _cell_bytes(file, kind, kind)
    return found


def _cell_bytes(file: ModelFile, keys: str, values: str) -> int:
    return kv_cache_bytes(file, n_ctx=1, kv_k=keys, kv_v=values)
