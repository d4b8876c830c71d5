"""How a model is run, on any engine, and how many threads that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from edge_spec.memory.device import cores
from edge_spec.models import ModelFile
from edge_spec.models.gguf.types import KV_TYPES
from edge_spec.models.heads import is_head
from edge_spec.options import require_one_of, require_whole

__all__ = ["SMALL_PARAMS", "ModelSettings", "ThreadCounts"]


SMALL_PARAMS = 20_000_000
"""Below this many parameters a second thread costs more in waiting than it computes, and nobody notices a probe."""

_SMALL_CHUNK = 128
"""Tokens per decode while a drafter reads a prompt: its weights fit the processor's caches, but its buffers count."""


class ThreadCounts(NamedTuple):
    """Numbers of threads: for one row, for several as drafts and texts side by side have them, and for a prompt."""

    one: int
    several: int
    prompt: int

    def __str__(self) -> str:
        parts = {"for one row": self.one, "for several": self.several, "for prompts": self.prompt}
        if len(set(parts.values())) == 1:
            return str(self.one)
        return ", ".join(f"{n} {what}" for what, n in parts.items())

    def for_rows(self, n: int, most: int) -> int:
        """Return that of a run of ``n`` rows, where decodes have at most ``most``."""
        return self.one if n <= 1 else self.several if n <= most else self.prompt


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How one model is run, on any engine.

    Attributes:
        n_ctx: the most tokens that can be committed. Room for drafts is added to it.
        n_threads, n_threads_batch: the most threads for one row, and for many; 0 for the number of physical cores, or
            what was measured to be faster, see ``thread_counts``.
        kv_k, kv_v: types of cached keys and values; ``auto`` leaves them to the engine.
        prefill_chunk: tokens per decode while a prompt is read.
        max_rows: the most rows of one decode that returns logits.
        trees: whether one decode may hold several continuations.
        exact: compute rows only in widths that round alike. A drafter does not need it: its rounding never reaches
            the text.
        held_experts: how many experts of each layer stay in memory, while the others are read from the file when a row
            uses them; 0 for all. A plan chooses it, and it changes no text.
        extras: settings that only some engines have (``Engine.extras``), by name; the other engines ignore them.

    Raises:
        SettingsError: a value out of its range.
    """

    n_ctx: int
    n_threads: int = 0
    n_threads_batch: int = 0
    kv_k: str = "auto"
    kv_v: str = "auto"
    prefill_chunk: int = 512
    max_rows: int = 16
    trees: bool = False
    exact: bool = True
    held_experts: int = 0
    extras: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        require_whole("n_ctx", self.n_ctx, 1, (1 << 31) - 1)
        for name, smallest, largest in (
            ("n_threads", 0, 512),
            ("n_threads_batch", 0, 512),
            ("max_rows", 1, 64),
            ("prefill_chunk", self.max_rows, 1 << 16),
        ):
            require_whole(name, getattr(self, name), smallest, largest)
        for name in ("kv_k", "kv_v"):
            require_one_of(name, getattr(self, name), ("auto", *KV_TYPES))

    @property
    def n_cells(self) -> int:
        """Tokens that a cache has room for.

        Room for drafts and padding is added to what the user asked for, always the same: it must not make a difference
        to the text that fits.
        """
        return self.n_ctx + 2 * self.max_rows

    @property
    def threads(self) -> tuple[int, int]:
        """Threads for one row and for many, resolved: no more than there are cores with hyperthreads, since every
        decode waits for the slowest."""
        physical, logical = cores()
        n = min(self.n_threads or physical, logical)
        return n, min(self.n_threads_batch or n, logical)

    @property
    def thread_counts(self) -> ThreadCounts:
        """The same by what is computed."""
        n, n_batch = self.threads
        return ThreadCounts(n, n_batch, n_batch)

    def for_drafter(self, file: ModelFile, *, trees: bool) -> Self:
        """Return the settings of a smaller model that drafts for one with these: the same context, fewer threads.

        A head has as many as its target. What the target reads in every round pushes its weights out of the processor's
        caches, and two cores bring them back sooner than one.
        """
        small = file.n_params < SMALL_PARAMS and not is_head(file)
        n, n_batch = (1, 1) if small else (self.n_threads, self.n_threads_batch)
        chunk = max(self.max_rows, min(self.prefill_chunk, _SMALL_CHUNK))
        mine = replace(self, trees=trees, exact=False, prefill_chunk=chunk, held_experts=0)
        return replace(mine, n_threads=n, n_threads_batch=n_batch)
