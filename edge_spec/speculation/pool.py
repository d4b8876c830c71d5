"""One pool of cells for the texts of a model: a text is a path through it.

Paths share the tiles that they begin with, and one decode advances as many of them as it has rows. What a row is
computed with, where its path's tiles lie and how large the pool is make no difference to its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from edge_spec.speculation.language_model import Capabilities, LanguageModel, Logits, NumericsProfile
from edge_spec.speculation.tree import Tree

__all__ = ["TILE", "Path", "Pool", "PooledModel", "pool_of", "share_decodes"]

TILE = 16
"""Cells that paths share, copy and give back together; those of one tile hold places of a text that are neighbors."""


class Path(LanguageModel, Protocol):
    """A text in a pool of cells: what is committed of it, and a pending tree after that.

    It has all methods of ``LanguageModel``, for itself alone, except that ``cancel`` and ``resume`` are those of its
    pool, and ``close`` gives its cells back and leaves the pool open. Whatever needs further cells raises ``PoolFull``
    if there are too few, and has changed nothing then.
    """

    @property
    def pool(self) -> Pool:
        """The pool that its cells are of."""

    def fork(self, n: int) -> Path:
        """Return a path of its own that begins with the first ``n`` committed tokens of this one.

        Whole tiles are shared; the tile in which it forks is copied. Like ``rollback``, it may begin with fewer tokens
        where a model cannot go back anywhere; ``n_past`` tells.

        Raises:
            PoolFull: there is no cell to copy that tile to.
        """


class Pool(Protocol):
    """The cells of a model, and the paths through them."""

    @property
    def n_vocab(self) -> int:
        """Number of token ids, the columns of a row."""

    @property
    def n_ctx(self) -> int:
        """The most tokens that one path can commit."""

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do with one path."""

    @property
    def profile(self) -> NumericsProfile:
        """What rounds."""

    @property
    def max_rows(self) -> int:
        """The most rows of one decode, those of all its paths together."""

    @property
    def max_paths(self) -> int:
        """The most paths that can have cells at a time."""

    @property
    def n_cells(self) -> int:
        """How many cells there are."""

    @property
    def n_free(self) -> int:
        """How many cells no path holds."""

    @property
    def n_shared(self) -> int:
        """How many cells several paths hold."""

    @property
    def cell_bytes(self) -> int:
        """What a cell takes."""

    @property
    def text_bytes(self) -> int:
        """What a path takes besides cells while it has any token: its states in recurrent layers, with their copies."""

    def path(self, target: Path | None = None) -> Path:
        """Return an empty path.

        Args:
            target: whose text it follows, where the model reads what its target computes; None for the first one.
        """

    def n_more(self, path: Path, n: int) -> int:
        """Return how many cells must be free for ``n`` further tokens of a path, pending ones included."""

    def decode(self, trees: Sequence[tuple[Path, Tree]]) -> list[Logits]:
        """Compute the nodes of each tree that are not pending in its path yet, all in one decode.

        Returns:
            For each path ``[new, n_vocab]``, in order, good until anything else is computed.

        Raises:
            PoolFull, ContextFull: there are too few cells, or a path is too long; nothing has changed.
            Cancelled, BackendError: nothing is committed and nothing pending in any of the paths.
        """

    def prefill(self, texts: Sequence[tuple[Path, Sequence[int]]]) -> None:
        """Commit tokens after each path, without logits, read together in chunks of the profile's size.

        Drops pending trees.

        Raises:
            PoolFull, ContextFull: there are too few cells, or a path is too long; nothing has been committed.
            Cancelled, BackendError: ``n_past`` of each path tells how far it came.
        """

    def resize(self, n_cells: int) -> None:
        """Have at least so many cells. What paths hold stays, with the same bits.

        Raises:
            ValueError: fewer than what paths hold. MemoryError: there is not so much memory. Nothing has changed then.
        """

    def close(self) -> None:
        """Free everything. Safe to call twice."""


@runtime_checkable
class PooledModel(LanguageModel, Protocol):
    """A language model with a pool. It is the path that is there since the model was opened; closing it closes the
    pool."""

    @property
    def pool(self) -> Pool:
        """The pool that its cells are of."""

    def fork(self, n: int) -> Path:
        """See ``Path.fork``."""


def pool_of(model: LanguageModel) -> Pool | None:
    """Return the pool that a model is a path of; None if it knows one text, or others would change its bits."""
    return getattr(model, "pool", None) if model.capabilities.in_company else None


def share_decodes(models: Sequence[LanguageModel]) -> bool:
    """Return whether one decode can advance these models, each of a text."""
    pool = pool_of(models[0])
    return len(models) == 1 or (
        pool is not None and len(models) <= pool.max_rows and all(pool_of(each) is pool for each in models)
    )
