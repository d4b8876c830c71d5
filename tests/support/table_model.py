"""A language model whose distributions are in a table, which it computes from exactly: no file, no library."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from edge_spec.engines.cache_state import check_path, n_new_nodes, require_distinct
from edge_spec.engines.places import Places
from edge_spec.engines.tiles import PathTiles, Tiles, n_tiles
from edge_spec.errors import Cancelled, Closed, ContextFull, StateError
from edge_spec.speculation.language_model import ANYWHERE, Capabilities, Logits, NumericsProfile
from edge_spec.speculation.pool import TILE, Path
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["TableModel", "TablePath", "TablePool", "random_table"]

_STATE = struct.Struct("<8sQ16s")
_MAGIC = b"edgetab1"


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


class TablePool:
    """The cells of a table model; see ``Pool``. They are counted, and nothing is in them: a path knows its tokens.

    Attributes:
        n_places: before how many rows of a decode the model knows the text; None for any number.
    """

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
        self.n_vocab = int(table.shape[0])
        self.n_ctx = n_ctx
        self.capabilities = capabilities
        self.max_rows = capabilities.max_rows
        self.cell_bytes, self.text_bytes = 1, 0
        self.keeps_branches = keeps_branches
        self.n_places = n_places
        self.tiles = Tiles(n_tiles(n_cells))
        self._table = table
        self._order = table.ndim - 1
        self._distort = distort
        self._cancelled = False
        self._closed = False

    @property
    def profile(self) -> NumericsProfile:
        digest = blake2b(self._table.tobytes(), digest_size=8).hexdigest()
        return NumericsProfile(engine="table", facts=(("table", digest), ("n_ctx", str(self.n_ctx))))

    @property
    def max_paths(self) -> int:
        return sys.maxsize

    @property
    def n_cells(self) -> int:
        return self.tiles.n * TILE

    @property
    def n_free(self) -> int:
        return self.tiles.n_free * TILE

    @property
    def n_shared(self) -> int:
        return self.tiles.n_shared * TILE

    def path(self, target: Path | None = None) -> TablePath:
        return TablePath(self)

    def n_more(self, path: Path, n: int) -> int:
        path = self._own(path)
        return path.tiles.n_needed(path.n_past, path.n_past + n) * TILE

    def decode(self, trees: Sequence[tuple[Path, Tree]]) -> list[Logits]:
        drafts = [(self._own(path), tree) for path, tree in trees]
        self.enter([(path, len(tree)) for path, tree in drafts], room=self.n_ctx + self.max_rows)
        counts = [path.n_new(tree) for path, tree in drafts]
        n_rows = sum(counts)
        if n_rows > self.max_rows:
            raise ValueError(f"{n_rows} rows in one decode; from 1 to {self.max_rows} are possible")
        self.tiles.reserve([(path.tiles, path.n_past, path.n_past + len(tree)) for path, tree in drafts])
        n_run = self.capabilities.padded(n_rows)
        try:
            for (path, tree), n in zip(drafts, counts, strict=True):
                path.decoded(tree, n, n_run - n_rows)
            return [self._rows(path, len(tree) - n, n_run) for (path, tree), n in zip(drafts, counts, strict=True)]
        except BaseException:
            for path, _ in drafts:
                path.forget_pending()
            raise

    def prefill(self, texts: Sequence[tuple[Path, Sequence[int]]]) -> None:
        given = [(self._own(path), tokens) for path, tokens in texts]
        lengths = [(path, len(tokens)) for path, tokens in given]
        self.enter(lengths, room=self.n_ctx)
        for path, _ in given:
            path.forget_pending()
        self.tiles.reserve([(path.tiles, path.n_past, path.n_past + n) for path, n in lengths])
        for path, tokens in given:
            path.read(tokens)

    def enter(self, texts: Sequence[tuple[TablePath, int]], *, room: int) -> None:
        """Refuse further tokens of some paths if it is closed, was cancelled, or they do not fit."""
        require_distinct(path for path, _ in texts)
        if self._closed:
            raise Closed("the table model")
        for path, _ in texts:
            path.require_open()
        if self._cancelled:
            self._cancelled = False
            for path, _ in texts:
                path.forget_pending()
            raise Cancelled
        for path, n in texts:
            if path.n_past + n > room:
                raise ContextFull(n_past=path.n_past, n_new=n, n_ctx=self.n_ctx)

    def _own(self, path: Path) -> TablePath:
        if not isinstance(path, TablePath) or path.pool is not self:
            raise ValueError("a text of another pool")
        return path

    def _rows(self, path: TablePath, first: int, n_run: int) -> Logits:
        tree, before = path.pending, path.last(self._order)
        rows = np.empty((len(tree) - first, self.n_vocab), dtype=np.float32)
        for place, node in enumerate(range(first, len(tree))):
            row = self.row_after([*before, *(tree.tokens[above] for above in tree.path_to(node))])
            rows[place] = self._distort(row, n_run) if self._distort else row
        return rows

    def row_after(self, text: Sequence[int]) -> Logits:
        """Return the logits of what follows a text."""
        wanted = [0] * (self._order - len(text)) + list(text[len(text) - self._order :]) if self._order else []
        return self._table[tuple(wanted)]  # type: ignore[no-any-return]

    def resize(self, n_cells: int) -> None:
        self.tiles.resize(n_tiles(n_cells))

    def cancel(self) -> None:
        """Make what is computed next raise ``Cancelled``."""
        self._cancelled = True

    def resume(self) -> None:
        """Forget a ``cancel``."""
        self._cancelled = False

    def close(self) -> None:
        self._closed = True


class TablePath:
    """A text of a table model. It works the way a real cache does: it remembers what is committed and what is pending,
    and computes from nothing else."""

    def __init__(self, pool: TablePool) -> None:
        self._pool = pool
        self.tiles = PathTiles(pool.tiles)
        self._places = Places(pool.n_places) if pool.n_places is not None else None
        self._cells: list[int] = []
        self._pending: Tree = EMPTY
        self._closed = False

    @property
    def pool(self) -> TablePool:
        return self._pool

    @property
    def n_vocab(self) -> int:
        return self._pool.n_vocab

    @property
    def kept(self) -> KeptTokens | None:
        return None

    @property
    def n_ctx(self) -> int:
        return self._pool.n_ctx

    @property
    def n_past(self) -> int:
        return len(self._cells)

    @property
    def cells(self) -> tuple[int, ...]:
        """The committed tokens."""
        return tuple(self._cells)

    def last(self, n: int) -> list[int]:
        """Return the last committed tokens."""
        return self._cells[max(0, len(self._cells) - n) :]

    @property
    def pending(self) -> Tree:
        """What has been decoded and neither kept nor rolled back."""
        return self._pending

    @property
    def capabilities(self) -> Capabilities:
        return self._pool.capabilities

    @property
    def profile(self) -> NumericsProfile:
        return self._pool.profile

    def prefill(self, tokens: Sequence[int]) -> None:
        self._pool.prefill([(self, tokens)])

    def read(self, tokens: Sequence[int]) -> None:
        """Commit tokens for which there are cells."""
        self._cells.extend(tokens)
        self._computed(len(tokens), 0)

    def decode(self, tree: Tree) -> Logits:
        return self._pool.decode([(self, tree)])[0]

    def n_new(self, tree: Tree) -> int:
        """Return how many nodes of a tree are not pending; refuses a tree that cannot be decoded."""
        n = n_new_nodes(tree, self._pending, max_rows=self._pool.max_rows)
        if not tree.is_sequence and not self.capabilities.takes_trees:
            raise ValueError("this model takes sequences, not trees")
        return n

    def require_open(self) -> None:
        """Refuse to compute if it is closed."""
        if self._closed:
            raise Closed("this text of the table model")

    def decoded(self, tree: Tree, n_new: int, n_padding: int) -> None:
        """A tree is pending now."""
        self._pending = tree
        self._computed(n_new, n_padding)

    def _computed(self, n_rows: int, n_padding: int) -> None:
        if self._places is not None and n_rows:
            self._places.computed(len(self._cells) + len(self._pending) + n_padding, n_rows + n_padding)

    def keep(self, path: Sequence[int]) -> None:
        check_path(path, self._pending)
        if not self._pool.keeps_branches:
            path = [node for place, node in enumerate(path) if list(path[: place + 1]) == list(range(place + 1))]
        self._cells.extend(self._pending.tokens[node] for node in path)
        self._pending = EMPTY
        self._go_back(len(self._cells))

    def rollback(self, n_past: int) -> None:
        if not 0 <= n_past <= len(self._cells):
            raise ValueError(f"rollback to {n_past} of {len(self._cells)} tokens")
        self._pending = EMPTY
        self._go_back(n_past)

    def _go_back(self, n: int) -> None:
        del self._cells[n if self._places is None else self._places.nearest(n) :]
        self.tiles.cut(len(self._cells))

    def forget_pending(self) -> None:
        """Drop the pending tree."""
        if self._pending:
            self.rollback(len(self._cells))

    def hold(self) -> None:
        self.forget_pending()
        if self._places is not None:
            self._places.copies = {len(self._cells): None}

    def fork(self, n: int) -> TablePath:
        if not 0 <= n <= len(self._cells):
            raise ValueError(f"a fork at {n} of {len(self._cells)} tokens")
        self._pool.enter([(self, 0)], room=self.n_ctx)
        fork = TablePath(self._pool)
        fork._places = deepcopy(self._places)
        n = n if fork._places is None else fork._places.nearest(n)
        fork.tiles = self.tiles.fork(n)[0]
        fork._cells = self._cells[:n]
        return fork

    def shift(self, first: int, last: int) -> None:
        self._pool.enter([(self, 0)], room=self.n_ctx)
        self.forget_pending()
        # What moves gets cells of its own.
        end = len(self._cells) - (last - first)
        self._pool.tiles.reserve([(self.tiles, first, end)])
        del self._cells[first:last]
        self.tiles.cut(end)

    def save(self) -> bytes:
        self.forget_pending()
        body = np.asarray(self._cells, dtype="<i4").tobytes()
        return _STATE.pack(_MAGIC, len(self._cells), self._seal(body)) + body

    def restore(self, state: bytes) -> None:
        self.rollback(0)
        body = state[_STATE.size :]
        if state[: _STATE.size] != _STATE.pack(_MAGIC, len(body) // 4, self._seal(body)):
            raise StateError("the saved state is damaged or of another model", hint="read the text again instead")
        self.prefill(np.frombuffer(body, dtype="<i4").tolist())

    def _seal(self, body: bytes) -> bytes:
        return blake2b(body, digest_size=16, person=self.profile.name.encode()).digest()

    def cancel(self) -> None:
        self._pool.cancel()

    def resume(self) -> None:
        self._pool.resume()

    def close(self) -> None:
        self._pending = EMPTY
        self._cells.clear()
        self.tiles.cut(0)
        self._closed = True


class TableModel(TablePath):
    """A Markov model: the logits of the next token are in a table under the last ``order`` tokens.

    While the text is shorter than ``order`` tokens, token 0 stands in for the missing ones.

    Args:
        table: logits, ``[n_vocab] * (order + 1)``, float32.
        n_ctx: the most tokens that can be committed.
        n_cells: how many cells its pool has at first; enough for one text if None.
        takes_trees, widths, max_rows, can_shift: see ``Capabilities``.
        n_snapshots: before how many rows of a decode it knows the text, like a recurrent model; beyond these it goes
            back to what it held, or to nothing. Any number of tokens if None.
        rollback: see ``Capabilities``; ``n_snapshots`` if None. A drafter need not keep snapshots.
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

    def close(self) -> None:
        self._pool.close()
