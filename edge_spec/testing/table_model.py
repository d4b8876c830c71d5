"""A language model whose logits are in a table: no file, no rounding, no library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from hashlib import blake2b
from typing import Any

import numpy as np

from edge_spec.engines.places import Places
from edge_spec.engines.pool import CachedPath, CachedPool, Part
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tiles import PathTiles, Tiles, n_tiles
from edge_spec.errors import Cancelled, Closed, PoolFull
from edge_spec.speculation.language_model import ANYWHERE, Capabilities, Logits, NumericsProfile
from edge_spec.speculation.pool import TILE, Path
from edge_spec.speculation.tree import EMPTY

__all__ = ["TableModel", "TablePath", "TablePool", "random_table"]


def random_table(
    n_vocab: int, *, order: int = 2, seed: int = 0, scale: float = 2.0, like: Logits | None = None
) -> Logits:
    """Return the table of a random ``TableModel``: normal logits of standard deviation ``scale`` for every context.

    Args:
        n_vocab: number of token ids.
        order: on how many earlier tokens the next one depends.
        seed: equal seeds give equal tables.
        like: a table of the same shape to which the logits are added. With a small ``scale`` the result is the table of
            a drafter's model that often agrees with a target of table ``like``.

    Returns:
        Logits, ``[n_vocab] * (order + 1)``, float32.
    """
    table = np.random.default_rng(seed).standard_normal((n_vocab,) * (order + 1)) * scale
    return (table if like is None else table + like).astype(np.float32)


class TablePool(CachedPool["TablePath"]):
    """The pool of a ``TableModel``. Its cells are counted and have no content: a path knows its tokens."""

    cell_bytes, text_bytes = 1, 0

    def __init__(
        self, table: Logits, can: Capabilities, n_ctx: int, n_cells: int, n_snapshots: int | None, keeps_branches: bool
    ) -> None:
        digest = blake2b(table.tobytes(), digest_size=8).hexdigest()
        super().__init__(
            ModelSettings(n_ctx=n_ctx, max_rows=can.max_rows, trees=can.takes_trees, prefill_chunk=1 << 16),
            n_vocab=len(table),
            profile=NumericsProfile(engine="table", facts=(("table", digest), ("n_ctx", str(n_ctx)))),
            capabilities=can,
        )
        self.n_snapshots, self.keeps_branches = n_snapshots, keeps_branches
        self.tiles = Tiles(n_tiles(n_cells))
        self._table = table
        self._cancelled = self._closed = False
        # Of a pool of one path, which of them has cells.
        self._holder: TablePath | None = None

    @property
    def n_cells(self) -> int:
        return self.tiles.n * TILE

    @property
    def n_free(self) -> int:
        return self.tiles.n_free * TILE

    @property
    def n_shared(self) -> int:
        return self.tiles.n_shared * TILE

    def path(self, like: Path | None = None) -> TablePath:
        return TablePath(self)

    def n_more(self, path: Path, n: int) -> int:
        path = self._mine(path)
        n_cells = path.tiles.n_needed(path.n_past, path.n_past + n) * TILE
        return max(n_cells, self.n_free + 1) if self._is_full_for(path) else n_cells

    def _is_full_for(self, path: TablePath) -> bool:
        """Return whether another path has cells where only one can have any."""
        return self.max_paths == 1 and self._holder not in (None, path) and bool(self._holder.tiles.ids)

    def reserve(self, places: Sequence[tuple[TablePath, int, int]]) -> None:
        """Have cells for places of paths, see ``Tiles.reserve``."""
        for path, _, _ in places:
            if self._is_full_for(path):
                raise PoolFull(n_free=0, n_needed=1, n_texts=self.max_paths)
            self._holder = path
        self.tiles.reserve([(path.tiles, first, end) for path, first, end in places])

    def _reserve(self, parts: Sequence[Part[TablePath]]) -> None:
        self.reserve([(part.path, part.path.n_past, part.start + len(part.tokens)) for part in parts])

    def _compute(self, parts: Sequence[Part[TablePath]], *, is_decode: bool) -> Logits:
        if self._cancelled:
            self._cancelled = False
            raise Cancelled
        n = sum(len(part.tokens) for part in parts)
        n_run = self.capabilities.padded(n) if is_decode else n
        for part in parts:
            part.path.computed(part, n_run - n)
        rows = [self.row(text, n_run) for part in parts if is_decode for text in part.path.branches(part)]
        return np.array(rows, np.float32)

    def row(self, text: Sequence[int], n_rows: int) -> Logits:
        """Return the logits of what follows a text, ``[n_vocab]``, in a decode of ``n_rows`` rows."""
        order = self._table.ndim - 1
        return self._table[(0,) * (order - len(text)) + tuple(text[max(0, len(text) - order) :])]  # type: ignore[no-any-return]

    def resize(self, n_cells: int) -> None:
        self.tiles.resize(n_tiles(n_cells))

    def require_open(self) -> None:
        if self._closed:
            raise Closed("the table model")

    def cancel(self) -> None:
        self._cancelled = True

    def resume(self) -> None:
        self._cancelled = False

    def close(self) -> None:
        self._closed = True


class TablePath(CachedPath[TablePool]):
    """A text of a ``TableModel``. Like a real cache it remembers committed and pending tokens, and its rows depend on
    nothing else."""

    def __init__(self, pool: TablePool) -> None:
        super().__init__(pool)
        self.tiles = PathTiles(pool.tiles)
        self._places = Places(pool.n_snapshots) if pool.n_snapshots is not None else None
        self._cells: list[int] = []

    @property
    def cells(self) -> tuple[int, ...]:
        """The committed tokens."""
        return tuple(self._cells)

    def branches(self, part: Part[TablePath]) -> Iterator[list[int]]:
        """Yield the whole text down to each new node of a part."""
        assert part.tree is not None
        for node in range(part.first, len(part.tree)):
            yield [*self._cells, *(part.tree.tokens[above] for above in part.tree.path_to(node))]

    def computed(self, part: Part[TablePath], n_padding: int) -> None:
        """Note that the tokens of a part have been computed, and padding after them."""
        if part.tree is None:
            self._cells += part.tokens
        if self._places is not None and part.tokens:
            n_rows = len(part.tokens) + n_padding
            self._places.computed(part.start + n_rows, n_rows)

    def drop_pending(self) -> None:
        self.pending = EMPTY
        if self._places is not None:
            self._n_past = self._places.nearest(self._n_past)
        del self._cells[self._n_past :]
        self.tiles.cut(self._n_past)

    def _moved_up(self, path: Sequence[int]) -> int:
        if not self.pool.keeps_branches:
            path = [node for place, node in enumerate(path) if list(path[: place + 1]) == list(range(place + 1))]
        self._cells.extend(self.pending.tokens[node] for node in path)
        return len(path)

    def hold(self) -> None:
        self.drop_pending()
        if self._places is not None:
            self._places.copies = {self._n_past: None}

    def _forked(self, n: int) -> tuple[Any, int]:
        fork = TablePath(self.pool)
        fork._places = deepcopy(self._places)
        n = n if fork._places is None else fork._places.nearest(n)
        fork.tiles = self.tiles.fork(n)[0]
        fork._cells = self._cells[:n]
        return fork, n

    def _take_out(self, first: int, last: int) -> None:
        # What moves gets cells of its own.
        end = self._n_past - (last - first)
        self.pool.reserve([(self, first, end)])
        del self._cells[first:last]
        self.tiles.cut(end)

    def _write(self) -> bytes:
        return np.asarray(self._cells, dtype="<i4").tobytes()

    def _read(self, body: bytes, n_past: int) -> None:
        self.pool.reserve([(self, 0, n_past)])
        self._cells = np.frombuffer(body, dtype="<i4").tolist()
        if self._places is not None and n_past:
            self._places.computed(n_past, n_past)


class TableModel(TablePath):
    """A Markov model: the logits of the next token are in a table under the last ``order`` tokens.

    It is a target or a drafter's model of which everything is known, and it computes in microseconds. It is the
    ``Path`` of one text; ``pool`` is its ``Pool``, and ``pool.path()`` returns further texts. While a text is shorter
    than ``order`` tokens, token 0 stands for the missing ones.

    Args:
        table: logits, ``[n_vocab] * (order + 1)``, float32, see ``random_table``.
        n_ctx: the most tokens that a text can have.
        n_cells: how many cells the pool has at first; enough for one text if None.
        takes_trees, widths, max_rows, can_shift: see ``Capabilities``.
        n_snapshots: if given, it cannot go back to any place in a text, like a recurrent model: from the last decode
            it keeps the states before so many rows, besides the one that it was told to hold.
        rollback: see ``Capabilities``; by default what ``n_snapshots`` allow. A drafter's model that holds states may
            say ``ANYWHERE``.
        in_company: see ``Capabilities``; without it one text has cells at a time.
        keeps_branches: whether ``keep`` commits a path through any branch, or like llama.cpp only as far as its nodes
            are the first ones of the tree.

    Raises:
        ValueError: the axes of the table have different lengths, or capabilities contradict each other.
    """

    def __init__(
        self,
        table: Logits,
        *,
        n_ctx: int = 1 << 20,
        n_cells: int | None = None,
        takes_trees: bool = True,
        widths: tuple[int, ...] = tuple(range(1, 65)),
        max_rows: int = 64,
        can_shift: bool = True,
        n_snapshots: int | None = None,
        rollback: int | None = None,
        in_company: bool = True,
        keeps_branches: bool = True,
    ) -> None:
        if len(set(table.shape)) != 1:
            raise ValueError(f"a table of shape {table.shape}; all axes must be the vocabulary")
        rollback = rollback if rollback is not None else ANYWHERE if n_snapshots is None else n_snapshots
        capabilities = Capabilities(
            rollback=rollback,
            takes_trees=takes_trees,
            widths=widths,
            max_rows=min(max_rows, rollback + 1),
            can_shift=can_shift,
            in_company=in_company,
            # A row follows from the tokens alone.
            reuse_step=1 if n_snapshots is None else 0,
        )
        n_cells = n_ctx + capabilities.max_rows if n_cells is None else n_cells
        table = np.asarray(table, np.float32)
        super().__init__(TablePool(table, capabilities, n_ctx, n_cells, n_snapshots, keeps_branches))

    def close(self) -> None:
        """Close the model, all texts of its pool included. Safe to call twice."""
        self.pool.close()
