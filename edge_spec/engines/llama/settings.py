"""How a GGUF is run on llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.threads import physical_cores
from edge_spec.errors import SettingsError

__all__ = ["LlamaSettings"]


@dataclass(frozen=True, kw_only=True)
class LlamaSettings(ModelSettings):
    """Settings of one llama.cpp context: those of every engine, and two of its own.

    ``auto`` keys have 8 bits (q8_0) where the size of heads allows: with them llama.cpp computes a row alone and among
    others bit for bit alike on the CPU, so plain decoding needs no padding; with 16-bit keys a lone row takes another
    path once the cache is padded to 512 cells. They are smaller and faster to read, too. ``auto`` values are f16.

    Attributes:
        flash_attention: llama.cpp's fused attention; V types below 16 bits need it.
        repack: let the library copy weights into a layout that computes faster; else they stay mapped.

    Raises:
        SettingsError: a value out of its range.
    """

    kv_v: str = "f16"
    flash_attention: bool = True
    repack: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("flash_attention", "repack"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"is {getattr(self, name)!r} and must be True or False", argument=name)
        if not self.flash_attention and self.kv_v not in ("f32", "f16", "bf16"):
            raise SettingsError(f"values of type {self.kv_v} need flash attention")

    def for_heads(self, head_dim_k: int) -> LlamaSettings:
        """These settings with the types of the cache decided; quantised types come in blocks of 32."""
        eight_bits = head_dim_k % 32 == 0 and self.flash_attention
        keys = ("q8_0" if eight_bits else "f16") if self.kv_k == "auto" else self.kv_k
        return replace(self, kv_k=keys, kv_v="f16" if self.kv_v == "auto" else self.kv_v)

    @property
    def threads(self) -> tuple[int, int]:
        """Threads for one row and for many, resolved."""
        n = self.n_threads or physical_cores()
        return n, self.n_threads_batch or n
