"""What is said of a language model: what it can do, and what rounds in it. A ``Pool`` is one."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["ANYWHERE", "READ_AGAIN", "Capabilities", "Logits", "NumericsProfile"]

Logits = npt.NDArray[np.float32]
"""Rows of logits, ``[n, n_vocab]``."""


READ_AGAIN = ("overflow", "read again")
"""The fact of models with a state, which cannot lose tokens in its middle: when a text outgrows the context, what is
still seen is read again."""


@dataclass(frozen=True, kw_only=True)
class NumericsProfile:
    """Everything that rounds. Two runs with equal profiles, histories, settings and seeds give equal text.

    ``facts`` are ordered pairs such as ``("kv", "f16/f16")``; ``name`` is short, stable and shown in results.
    """

    engine: str
    facts: tuple[tuple[str, str], ...] = field(default=())

    @property
    def name(self) -> str:
        """Such as ``llama-3f9a1c20``: the engine, and a hash of the facts."""
        from hashlib import blake2b

        text = "\x1f".join(f"{key}\x1e{value}" for key, value in self.facts)
        return f"{self.engine}-{blake2b(text.encode(), digest_size=4).hexdigest()}"


ANYWHERE = sys.maxsize
"""How far a cache can be rolled back that forgets any number of tokens and keeps the others."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a loaded model can do, as found by trying it.

    Attributes:
        rollback: how many rows of a decode can be taken back, padding included, while those before them stay. 0: none,
            so nothing can be drafted. A recurrent model keeps as many of its earlier states.
        takes_trees: one decode may hold several continuations of the same text.
        widths: the numbers of rows per decode whose rows are bit for bit the same, ascending. ``decode``
            computes every call in one of them, padding where needed. Empty if rows round differently from
            width to width and the model is used as it comes.
        max_rows: the most rows that one decode returns; none beyond the widest of ``widths``.
        can_shift: tokens can be taken out of the middle of the cache.
        reuse_step: a cache of an earlier text serves another one that begins like it in multiples of so many tokens.
            1: a cell has the same bits however it was computed. More: only cells of prompts, read in whole chunks of
            this size. 0: it never does.
        prefill_chunk: ``prefill`` computes so many tokens at a time; 0 if it does not matter.
        in_company: texts that are computed together have the bits of each alone. Where not, a pool holds one.

    Raises:
        ValueError: more rows than the widest width has, or than can be taken back but for the first.
    """

    rollback: int
    takes_trees: bool
    widths: tuple[int, ...]
    max_rows: int
    can_shift: bool = False
    reuse_step: int = 0
    prefill_chunk: int = 0
    in_company: bool = True

    def __post_init__(self) -> None:
        if self.widths and self.max_rows > self.widths[-1]:
            raise ValueError(f"widths up to {self.widths[-1]} and {self.max_rows} rows in one decode")
        if self.max_rows > self.rollback + 1:
            raise ValueError(f"{self.max_rows} rows in one decode, of which {self.rollback} can be taken back")

    @property
    def identity(self) -> str:
        """``bitwise``: drafts never change a bit of a row. ``rounding``: they may change the last ones."""
        return "bitwise" if self.widths or not self.rollback else "rounding"

    def padded(self, n: int) -> int:
        """Return the number of rows that a decode of ``n`` rows computes."""
        return next((width for width in self.widths if width >= n), n)
