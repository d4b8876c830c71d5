"""How a model is run on ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace

from edge_spec.engines.settings import ModelSettings

__all__ = ["cache_kind", "onnx_settings"]

_KINDS = ("f32", "f16")
"""What a cache can hold: f16 takes half the memory, and rounds keys and values to 11 bits."""


def cache_kind(settings: ModelSettings) -> str | None:
    """The type that keys and values are both wanted in, if there is such a cache here."""
    kind = settings.kv_k
    return kind if kind in _KINDS and settings.kv_v == kind else None


def onnx_settings(settings: ModelSettings) -> ModelSettings:
    """Settings as a session is made with them: a type of cache that there is, and none that only others have."""
    kind = cache_kind(settings) or "f32"
    return replace(settings, kv_k=kind, kv_v=kind, extras={})
