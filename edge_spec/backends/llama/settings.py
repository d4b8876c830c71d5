"""How a GGUF is run on llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass

from edge_spec.backends.llama.library import KV_TYPES
from edge_spec.backends.threads import physical_cores
from edge_spec.errors import SettingsError

__all__ = ["LlamaSettings"]


@dataclass(frozen=True, kw_only=True)
class LlamaSettings:
    """Settings of one llama.cpp context.

    Attributes:
        n_ctx: the most tokens that can be committed. Room for drafts comes on top.
        n_threads, n_threads_batch: threads for one row, and for many; 0 for the number of physical cores.
        kv_k, kv_v: types of the KV cache. Keys at 8 bits are the default because with them llama.cpp computes
            a row alone and among others bit for bit alike on the CPU, so plain decoding needs no padding; with
            16-bit keys a lone row takes another path from 512 cells on. They are smaller and faster to read, too.
        flash_attention: llama.cpp's fused attention; V types below 16 bits need it.
        prefill_chunk: tokens per decode while reading a prompt.
        max_rows: the most rows of one decode that returns logits.
        trees: whether one decode may hold several continuations (a unified KV cache with a sequence per leaf).
        exact: compute rows only in widths that round alike, and commit only cells in plain order. A drafter can
            do without: its rounding never reaches the text.
        repack: let the library copy weights into a layout that computes faster; else they stay mapped.

    Raises:
        SettingsError: a value out of its range.
    """

    n_ctx: int
    n_threads: int = 0
    n_threads_batch: int = 0
    kv_k: str = "q8_0"
    kv_v: str = "f16"
    flash_attention: bool = True
    prefill_chunk: int = 512
    max_rows: int = 16
    trees: bool = False
    exact: bool = True
    repack: bool = True

    def __post_init__(self) -> None:
        if self.n_ctx < 1:
            raise SettingsError(f"a context of {self.n_ctx} tokens", hint="ask for 1 or more, such as --ctx 1024")
        for name in ("n_threads", "n_threads_batch"):
            if not 0 <= getattr(self, name) <= 512:
                raise SettingsError(f"{name} is {getattr(self, name)} and must be from 0 (all cores) to 512")
        for name in ("kv_k", "kv_v"):
            if getattr(self, name) not in KV_TYPES:
                raise SettingsError(f"{name} is {getattr(self, name)!r} and must be one of {', '.join(KV_TYPES)}")
        if not self.flash_attention and self.kv_v not in ("f32", "f16", "bf16"):
            raise SettingsError(f"values of type {self.kv_v} need flash attention")
        if not 1 <= self.max_rows <= 64:
            raise SettingsError(f"max_rows is {self.max_rows} and must be from 1 to 64")
        if self.prefill_chunk < self.max_rows:
            raise SettingsError(f"prefill_chunk is {self.prefill_chunk} and must be at least {self.max_rows}")

    @property
    def threads(self) -> tuple[int, int]:
        """Threads for one row and for many, resolved."""
        n = self.n_threads or physical_cores()
        return n, self.n_threads_batch or n
