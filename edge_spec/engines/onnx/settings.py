"""How a model is run on ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import SettingsError

__all__ = ["KV_KINDS", "OnnxSettings", "cache_kind", "onnx_settings"]

KV_KINDS = ("f32", "f16")
"""What a cache can hold."""


@dataclass(frozen=True, kw_only=True)
class OnnxSettings(ModelSettings):
    """Settings of one ONNX Runtime session and its cache.

    Keys and values have the same type: ``f32``, or ``f16``, which takes half the memory and rounds them to 11 bits.

    Raises:
        SettingsError: a value out of its range.
    """

    kv_k: str = "f32"
    kv_v: str = "f32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kv_k not in KV_KINDS or self.kv_v != self.kv_k:
            raise SettingsError(
                f"the cache is to hold {self.kv_k} keys and {self.kv_v} values, "
                f"and on ONNX Runtime both must be {' or '.join(KV_KINDS)}"
            )

    @property
    def kv(self) -> str:
        """What the cache holds, keys and values alike."""
        return self.kv_k

    @property
    def spin(self) -> bool:
        """Whether idle threads wait busily during a run, which starts work sooner; between runs they never do.

        Drafters share their cores with the target, so theirs do not.
        """
        return self.exact

    @property
    def n_cells(self) -> int:
        """Tokens for which a cache has room.

        Drafts and padding are added to what the user asked for, always equally many: they must not make a difference
        to the text that fits.
        """
        return self.n_ctx + 2 * self.max_rows


def cache_kind(settings: ModelSettings) -> str | None:
    """The type that keys and values are both wanted in, if there is such a cache here."""
    kind = settings.kv_k
    return kind if kind in KV_KINDS and settings.kv_v == kind else None


def onnx_settings(settings: ModelSettings) -> OnnxSettings:
    """Settings as a session is made with them; those that this engine does not have are left out."""
    values: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields(ModelSettings)}
    kind = cache_kind(settings) or "f32"
    return OnnxSettings(**values | {"kv_k": kind, "kv_v": kind, "extras": {}})
