"""What is asked of a language model, whatever computes it: weights, and a pool of cells for the texts in it.

A text is a path through the pool. Paths share the tiles that they begin with, and one decode advances as many of them
as it has rows. What a row is computed with, where its path's tiles lie and how large the pool is make no difference to
its bits. Where they would, or where a library holds a single text, a pool has one path with cells at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.tree import Tree
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["TILE", "Path", "Pool"]

TILE = 16
"""Cells that paths share, copy and give back together; those of one tile hold places of a text that are neighbors."""


@runtime_checkable
class Path(Protocol):
    """A text in a pool of cells.

    It has ``n_past`` committed tokens and, between a ``decode`` and the next ``keep`` or ``rollback``, a *pending* tree
    after them. Whatever needs further cells raises ``PoolFull`` if there are too few, or if as many paths have cells as
    there can be, and has changed nothing then.
    """

    @property
    def pool(self) -> Pool:
        """The pool that its cells are of."""

    @property
    def n_vocab(self) -> int:
        """See ``Pool``."""

    @property
    def kept(self) -> KeptTokens | None:
        """See ``Pool``."""

    @property
    def n_ctx(self) -> int:
        """See ``Pool``."""

    @property
    def capabilities(self) -> Capabilities:
        """See ``Pool``."""

    @property
    def profile(self) -> NumericsProfile:
        """See ``Pool``."""

    @property
    def n_past(self) -> int:
        """How many tokens are committed."""

    def prefill(self, tokens: Sequence[int]) -> None:
        """Commit tokens after ``n_past``, see ``Pool.prefill``."""

    def decode(self, tree: Tree) -> Logits:
        """Compute the nodes of ``tree`` that are not pending yet, see ``Pool.decode``."""

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

    def fork(self, n: int) -> Path:
        """Return a path of its own that begins with the first ``n`` committed tokens of this one.

        Whole tiles are shared; the tile in which it forks is copied. Like ``rollback``, it may begin with fewer tokens
        where a model cannot go back anywhere; ``n_past`` tells.
        """

    def shift(self, first: int, last: int) -> None:
        """Forget the committed tokens from ``first`` up to ``last``, and move those after them up.

        What was computed from the forgotten ones stays: the cache differs from that of a text that never had
        them. Drops a pending tree. Only for models that say ``can_shift``.
        """

    def save(self) -> bytes:
        """Return the committed cells as bytes. Drops a pending tree."""

    def restore(self, state: bytes) -> None:
        """Bring back what ``save`` returned.

        Raises:
            StateError: the bytes are damaged or of another model; the path is then empty.
        """

    def close(self) -> None:
        """Give its cells back. Safe to call twice."""


@runtime_checkable
class Pool(Protocol):
    """A language model: weights, cells, and the paths through them."""

    @property
    def n_vocab(self) -> int:
        """Number of token ids, the columns of a row."""

    @property
    def kept(self) -> KeptTokens | None:
        """The tokens that columns of its rows stand for, where it knows only some; None if columns are token ids."""

    @property
    def n_ctx(self) -> int:
        """The most tokens that one path can commit."""

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do. A decode has at most ``max_rows`` rows, those of all its paths together."""

    @property
    def profile(self) -> NumericsProfile:
        """What rounds."""

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

    def trim(self, kept: KeptTokens) -> None:
        """Be a model of another vocabulary from now on: be told all of its tokens, and return columns of the kept ones.

        The model goes on with its own ids: those of kept tokens, and for every other one the id that stands for all of
        them. Columns that are none of the kept tokens are left out of the rows.

        Raises:
            ValueError: it has no such ids.
        """

    def path(self, like: Path | None = None) -> Path:
        """Return an empty path.

        Args:
            like: the path of the target that has the same text, where the model reads what its target computes.
        """

    def n_more(self, path: Path, n: int) -> int:
        """Return how many cells must be free for ``n`` further tokens of a path, pending ones included."""

    def decode(self, trees: Sequence[tuple[Path, Tree]]) -> list[Logits]:
        """Compute the nodes of each tree that are not pending in its path yet, all in one decode.

        A tree may be grown: its first nodes must then be the pending ones, unchanged.

        Returns:
            For each path a row for each new node, in order, ``[new, n_vocab]``, good until anything else is computed.

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

    def cancel(self) -> None:
        """Make a decode that runs in another thread, or else the next one, raise ``Cancelled``."""

    def resume(self) -> None:
        """Forget a ``cancel`` that nothing has answered yet."""

    def close(self) -> None:
        """Free everything. Safe to call twice."""
