"""A language model whose distributions are in a table, which it computes from exactly: no file, no library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

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
    n_vocab: int, *, order: int = 2, seed: int = 0, scale: float = 2.0, like: npt.ArrayLike | None = None
) -> npt.NDArray[np.float32]:
    """Normal logits of standard deviation ``scale`` for every context, ``[n_vocab] * (order + 1)``.

    With ``like``, another table, the normal logits are added to it: the table of a drafter for a target with the other.
    """
    table = np.random.default_rng(seed).standard_normal((n_vocab,) * (order + 1)) * scale
    if like is not None:
        table += np.asarray(like)
    return table.astype(np.float32)


class TablePool(CachedPool["TablePath"]):
    """The cells of a table model; see ``Pool``. They are counted, and nothing is in them: a path knows its tokens.

    Attributes:
        n_places: before how many rows of a decode the model knows the text; None for any number.
    """

    cell_bytes, text_bytes = 1, 0

    def __init__(
        self,
        table: npt.NDArray[np.float32],
        n_ctx: int,
        capabilities: Capabilities,
        *,
        n_cells: int,
        n_places: int | None,
        keeps_branches: bool,
        distort: Callable[[Logits, int], Logits] | None,
    ) -> None:
        digest = blake2b(table.tobytes(), digest_size=8).hexdigest()
        super().__init__(
            ModelSettings(
                n_ctx=n_ctx, max_rows=capabilities.max_rows, trees=capabilities.takes_trees, prefill_chunk=1 << 16
            ),
            n_vocab=int(table.shape[0]),
            profile=NumericsProfile(engine="table", facts=(("table", digest), ("n_ctx", str(n_ctx)))),
            capabilities=capabilities,
        )
        self.keeps_branches = keeps_branches
        self.n_places = n_places
        self.tiles = Tiles(n_tiles(n_cells))
        self._table = table
        self._order = table.ndim - 1
        self._distort = distort
        self._cancelled = False
        self._closed = False
        # Of a pool of one path, which of them has cells.
        self._holder: TablePath | None = None
        self.watch: Callable[[Sequence[Part[TablePath]], bool], None] = _unwatched

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
        self.watch(parts, is_decode)
        if self._cancelled:
            self._cancelled = False
            raise Cancelled
        n = sum(len(part.tokens) for part in parts)
        n_run = self.capabilities.padded(n) if is_decode else n
        for part in parts:
            part.path.computed(part, n_run - n)
        if not is_decode:
            return np.empty((0, 0), np.float32)
        return np.concatenate([self._rows(part, n_run) for part in parts])

    def _rows(self, part: Part[TablePath], n_run: int) -> Logits:
        tree, before = part.tree, part.path.last(self._order)
        assert tree is not None
        rows = np.empty((len(part.tokens), len(self._table)), dtype=np.float32)
        for place, node in enumerate(range(part.first, len(tree))):
            row = self.row_after([*before, *(tree.tokens[above] for above in tree.path_to(node))])
            rows[place] = self._distort(row, n_run) if self._distort else row
        return rows

    def row_after(self, text: Sequence[int]) -> Logits:
        """Return the logits of what follows a text."""
        wanted = [0] * (self._order - len(text)) + list(text[len(text) - self._order :]) if self._order else []
        return self._table[tuple(wanted)]  # type: ignore[no-any-return]

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


def _unwatched(parts: Sequence[Part[TablePath]], is_decode: bool) -> None:
    """Let everything pass."""


class TablePath(CachedPath[TablePool]):
    """A text of a table model. It works the way a real cache does: it remembers what is committed and what is pending,
    and computes from nothing else."""

    def __init__(self, pool: TablePool) -> None:
        super().__init__(pool)
        self.tiles = PathTiles(pool.tiles)
        self._places = Places(pool.n_places) if pool.n_places is not None else None
        self._cells: list[int] = []

    @property
    def cells(self) -> tuple[int, ...]:
        """The committed tokens."""
        return tuple(self._cells)

    def last(self, n: int) -> list[int]:
        """Return the last committed tokens."""
        return self._cells[max(0, len(self._cells) - n) :]

    def computed(self, part: Part[TablePath], n_padding: int) -> None:
        """The tokens of a part have been computed, and padding after them."""
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
    """The only text of a Markov model, unless its pool is asked for others: the logits of the next token are in a table
    under the last ``order`` tokens.

    While the text is shorter than ``order`` tokens, token 0 stands in for the missing ones.

    Args:
        table: logits, ``[n_vocab] * (order + 1)``, float32.
        n_ctx: the most tokens that can be committed.
        n_cells: how many cells its pool has at first; enough for one text if None.
        takes_trees, widths, max_rows, can_shift: see ``Capabilities``.
        n_snapshots: before how many rows of a decode it knows the text, like a recurrent model; beyond these it goes
            back to what it held, or to nothing. Any number of tokens if None.
        rollback: see ``Capabilities``; ``n_snapshots`` if None. A drafter need not keep snapshots.
        in_company: see ``Capabilities``; without it one text has cells at a time.
        keeps_branches: whether ``keep`` commits a side branch, or like llama.cpp only nodes that lie in order.
        distort: stands for a kernel that rounds: given a row and the number of rows it was computed with.
    """

    def __init__(
        self,
        table: npt.NDArray[np.float32],
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
        distort: Callable[[Logits, int], Logits] | None = None,
    ) -> None:
        if len(set(table.shape)) != 1 or table.ndim < 1:
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
            reuse_step=1 if distort is None and n_snapshots is None else 0,
        )
        pool = TablePool(
            np.asarray(table, dtype=np.float32),
            n_ctx,
            capabilities,
            n_cells=n_ctx + capabilities.max_rows if n_cells is None else n_cells,
            n_places=n_snapshots,
            keeps_branches=keeps_branches,
            distort=distort,
        )
        super().__init__(pool)

    def cancel(self) -> None:
        self.pool.cancel()

    def resume(self) -> None:
        self.pool.resume()

    def close(self) -> None:
        self.pool.close()
