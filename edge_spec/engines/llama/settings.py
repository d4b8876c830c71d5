"""How a GGUF is run on llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge_spec.arguments import require_whole
from edge_spec.engines.llama.library import KV_TYPES
from edge_spec.engines.threads import physical_cores
from edge_spec.errors import SettingsError

__all__ = ["LlamaSettings"]


@dataclass(frozen=True, kw_only=True)
class LlamaSettings:
    """Settings of one llama.cpp context.

    Attributes:
        n_ctx: the most tokens that can be committed. Room for drafts comes on top.
        n_threads, n_threads_batch: threads for one row, and for many; 0 for the number of physical cores.
        kv_k, kv_v: types of the KV cache. ``auto`` keys have 8 bits (q8_0) where the heads' size allows: with them
            llama.cpp computes a row alone and among others bit for bit alike on the CPU, so plain decoding needs
            no padding; with 16-bit keys a lone row takes another path once the cache is padded to 512 cells. They
            are smaller and faster to read, too.
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
    kv_k: str = "auto"
    kv_v: str = "f16"
    flash_attention: bool = True
    prefill_chunk: int = 512
    max_rows: int = 16
    trees: bool = False
    exact: bool = True
    repack: bool = True

    def __post_init__(self) -> None:
        require_whole("n_ctx", self.n_ctx, 1, (1 << 31) - 1)
        for name, least, most in (
            ("n_threads", 0, 512),
            ("n_threads_batch", 0, 512),
            ("max_rows", 1, 64),
            ("prefill_chunk", self.max_rows, 1 << 16),
        ):
            require_whole(name, getattr(self, name), least, most)
        for name, known in (("kv_k", ("auto", *KV_TYPES)), ("kv_v", tuple(KV_TYPES))):
            if getattr(self, name) not in known:
                raise SettingsError(f"{name} is {getattr(self, name)!r} and must be one of {', '.join(known)}")
        if not self.flash_attention and self.kv_v not in ("f32", "f16", "bf16"):
            raise SettingsError(f"values of type {self.kv_v} need flash attention")

    def for_heads(self, head_dim_k: int) -> LlamaSettings:
        """These settings with the type of the keys decided; quantised types come in blocks of 32."""
        if self.kv_k != "auto":
            return self
        return replace(self, kv_k="q8_0" if head_dim_k % 32 == 0 and self.flash_attention else "f16")

    @property
    def threads(self) -> tuple[int, int]:
        """Threads for one row and for many, resolved."""
        n = self.n_threads or physical_cores()
        return n, self.n_threads_batch or n
