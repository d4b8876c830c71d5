"""How a model is run on ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass

from edge_spec.engines.threads import physical_cores
from edge_spec.errors import SettingsError

__all__ = ["KV_KINDS", "OnnxSettings"]

KV_KINDS = ("f32", "f16")
"""What a cache can hold."""


@dataclass(frozen=True, kw_only=True)
class OnnxSettings:
    """Settings of one ONNX Runtime session and its cache.

    Attributes:
        n_ctx: the most tokens that can be committed. Room for drafts comes on top.
        n_threads: 0 for the number of physical cores.
        kv: what the cache holds, ``f32`` or ``f16``: half the memory, keys and values rounded to 11 bits.
        prefill_chunk: tokens per run while reading a prompt.
        max_rows: the most rows of one decode that returns logits.
        trees: whether one decode may hold several continuations.
        exact: compute rows only in widths that round alike. A drafter can do without.
        spin: let idle threads wait busily during a run, which starts work sooner; between runs they never do.

    Raises:
        SettingsError: a value out of its range.
    """

    n_ctx: int
    n_threads: int = 0
    kv: str = "f32"
    prefill_chunk: int = 512
    max_rows: int = 16
    trees: bool = False
    exact: bool = True
    spin: bool = True

    def __post_init__(self) -> None:
        if self.n_ctx < 1:
            raise SettingsError(f"a context of {self.n_ctx} tokens", hint="ask for 1 or more, such as --ctx 1024")
        if not 0 <= self.n_threads <= 512:
            raise SettingsError(f"n_threads is {self.n_threads} and must be from 0 (all cores) to 512")
        if self.kv not in KV_KINDS:
            raise SettingsError(f"kv is {self.kv!r} and must be {' or '.join(KV_KINDS)} on ONNX Runtime")
        if not 1 <= self.max_rows <= 64:
            raise SettingsError(f"max_rows is {self.max_rows} and must be from 1 to 64")
        if self.prefill_chunk < self.max_rows:
            raise SettingsError(f"prefill_chunk is {self.prefill_chunk} and must be at least {self.max_rows}")

    @property
    def n_cells(self) -> int:
        """Tokens for which a cache has room.

        Drafts and padding come on top of what the user asked for, always equally many: they must not make a
        difference to the text that fits.
        """
        return self.n_ctx + 2 * self.max_rows

    @property
    def threads(self) -> int:
        """Threads, resolved."""
        return self.n_threads or physical_cores()
