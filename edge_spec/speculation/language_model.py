"""What the loop asks of a language model, whatever computes it.

A language model here is weights and one KV cache. The cache holds ``n_past`` committed tokens and, between a
``decode`` and the next ``keep`` or ``rollback``, a *pending* tree after them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from edge_spec.speculation.tree import Tree
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["ANYWHERE", "READ_AGAIN", "Capabilities", "LanguageModel", "Logits", "NumericsProfile"]

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
        in_company: where cells are a pool, texts that are computed together have the bits of each alone.

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


@runtime_checkable
class LanguageModel(Protocol):
    """Weights and one KV cache."""

    @property
    def n_vocab(self) -> int:
        """Number of token ids, the columns of a row."""

    @property
    def kept(self) -> KeptTokens | None:
        """The tokens that columns of its rows stand for, where it knows only some; None if columns are token ids."""

    @property
    def n_ctx(self) -> int:
        """The most tokens that can be committed."""

    @property
    def n_past(self) -> int:
        """How many tokens are committed."""

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do."""

    @property
    def profile(self) -> NumericsProfile:
        """What rounds."""

    def prefill(self, tokens: Sequence[int]) -> None:
        """Commit ``tokens`` after ``n_past``, without logits. Drops a pending tree.

        Raises:
            ContextFull: they do not fit; nothing has been committed.
            Cancelled: ``cancel`` was called; ``n_past`` tells how far it came.
        """

    def decode(self, tree: Tree) -> Logits:
        """Compute the nodes of ``tree`` that are not pending yet.

        A tree may be grown: its first nodes must then be the pending ones, unchanged.

        Returns:
            One row per new node, in order, ``[new, n_vocab]``. The rows belong to the model and are good until
            its next ``decode`` or ``prefill``.

        Raises:
            ContextFull: the tree does not fit.
            Cancelled: ``cancel`` was called; committed tokens are untouched, pending ones are gone.
        """

    def keep(self, path: Sequence[int]) -> None:
        """Commit pending nodes and drop the others.

        ``path`` is a way down the pending tree from its top, as node indices. A model may commit less than all
        of it: where the cells of a side branch lie in another order than plain decoding would have put them,
        rows would no longer be bit-identical, so those tokens are dropped too. ``n_past`` tells;
        the next decode begins with the tokens after it.
        """

    def rollback(self, n_past: int) -> None:
        """Forget pending nodes and all committed tokens but the first ``n_past``.

        A model that cannot go back anywhere may forget more, down to the last place that it has a state of. ``n_past``
        tells; the next decode begins with the tokens after it.
        """

    def hold(self) -> None:
        """Be able to come back to the committed text as it is now, until something else is held or it is changed.

        For drafters, whose guesses reach over several decodes. Models that can go back anywhere do nothing.
        """

    def shift(self, first: int, last: int) -> None:
        """Forget the committed tokens from ``first`` up to ``last``, and move those after them up.

        What was computed from the forgotten ones stays: the cache differs from that of a text that never had
        them. Drops a pending tree. Only for models that say ``can_shift``.
        """

    def save(self) -> bytes:
        """Return the committed cache as bytes. Drops a pending tree."""

    def restore(self, state: bytes) -> None:
        """Bring back what ``save`` returned.

        Raises:
            StateError: the bytes are damaged or of another model; the cache is then empty.
        """

    def cancel(self) -> None:
        """Make a decode that runs in another thread, or else the next one, raise ``Cancelled``."""

    def resume(self) -> None:
        """Forget a ``cancel`` that nothing has answered yet."""

    def close(self) -> None:
        """Free everything. Safe to call twice."""
