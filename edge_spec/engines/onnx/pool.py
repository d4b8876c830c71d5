"""The cells of a transcription, and texts as paths through them; see ``edge_spec/speculation/pool.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.features import Features
from edge_spec.engines.onnx.session import Session
from edge_spec.engines.onnx.session_pool import SessionPool
from edge_spec.engines.onnx.states import States, most_copies
from edge_spec.engines.pool import CachedPath, Part
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tiles import Cells, PathTiles, Tiles, n_tiles
from edge_spec.errors import StateError
from edge_spec.memory.usage import trim_heap
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import TILE, Path
from edge_spec.speculation.tree import EMPTY

__all__ = ["OnnxPath", "OnnxPool", "PathFeatures"]


class OnnxPool(SessionPool["OnnxPath", Session]):
    """See ``Pool``."""

    def __init__(self, session: Session, settings: ModelSettings, **given: Any) -> None:
        super().__init__(session, settings, **given)
        states = session.states
        self.text_bytes = 0 if states is None else states.kept_bytes + states.state_bytes * (1 + most_copies(settings))
        self.tiles = Tiles(session.n_tiles)

    @property
    def cell_bytes(self) -> int:
        return self._session.cell_bytes if self._session is not None else 0

    @property
    def n_cells(self) -> int:
        return self.tiles.n * TILE

    @property
    def n_free(self) -> int:
        return self.tiles.n_free * TILE

    @property
    def n_shared(self) -> int:
        return self.tiles.n_shared * TILE

    def path(self, like: Path | None = None) -> OnnxPath:
        return OnnxPath(self)

    def n_more(self, path: Path, n: int) -> int:
        path = self._mine(path)
        return path.tiles.n_needed(path.n_past, path.n_past + n) * TILE

    def _reserve(self, parts: Sequence[Part[OnnxPath]]) -> None:
        places = [(part.path.tiles, part.path.n_past, part.path.n_past + part.n_pending) for part in parts]
        self.copy_tiles(self.session, self.tiles.reserve(places))

    def _compute(self, parts: Sequence[Part[OnnxPath]], *, is_decode: bool) -> Logits:
        session, ids = self.session, [token for part in parts for token in part.tokens]
        n = len(ids)
        n_run = self.capabilities.padded(n)
        session.ids[:n_run] = ids + [0] * (n_run - n)
        states = [part.path.prepared(part) for part in parts] if session.states is not None else []
        # A run returns a row at least.
        wanted = range(n) if is_decode else range(n - 1, n)
        n_threads = self.threads.for_rows(n_run, self.settings.max_rows)
        logits = session.run(_numbers_of(parts), n_run, wanted, states, n_threads=n_threads)
        if session.features is not None:
            cells = [part.path.tiles.cells(part.start, part.start + len(part.tokens)) for part in parts]
            session.features.keep(np.concatenate(cells))
        if n > self.settings.max_rows:
            # What the runtime gives back the C library keeps in fragments, more with every chunk.
            trim_heap()
        return logits

    def settle(self, states: Sequence[int]) -> None:
        """Run the graph without a row, which lets the states of a text take in what is kept for them."""
        self.session.run(_numbers_of(()), 0, range(0), [states], n_threads=self.threads.one)

    def copy_tiles(self, session: Session, copies: Sequence[tuple[int, int]]) -> None:
        """Copy tiles to others."""
        if copies:
            lanes = np.arange(TILE)
            pairs = np.array(copies)[:, :, None] * TILE + lanes
            session.copy(pairs[:, 0].reshape(-1), pairs[:, 1].reshape(-1))

    def resize(self, n_cells: int) -> None:
        session, old, n = self.session, self.tiles.n, n_tiles(n_cells)
        moved = self.tiles.resize(n)
        self.copy_tiles(session, list(moved.items()))
        try:
            session.resize(n, self.tiles.end)
        except MemoryError:
            self.tiles.resize(old)
            raise

    def drop_features(self, features: Features) -> None:
        """Free them. Safe to call twice, and after the pool was closed."""
        if self._session is not None:
            self._session.drop_features(features)


class OnnxPath(CachedPath[OnnxPool]):
    """See ``Path``. Pending nodes are in the places after the text, in the path's own tiles: so keeping a side branch
    moves its cells up to the text.

    With recurrent layers it takes sequences, and goes back to the places that there are states of: the last tokens of
    what was computed can be taken back. Targets also keep the state where a prompt begins to be read and where it ends:
    an answer can be written again, or left out, without reading the whole text. Drafters keep theirs at the text that
    is certain.

    Attributes:
        tiles: where its cells are.
        states: of recurrent layers; None where there are none.
    """

    def __init__(self, pool: OnnxPool) -> None:
        super().__init__(pool)
        self.tiles = PathTiles(pool.tiles)
        memory = pool.session.states
        self.states = States(memory) if memory is not None else None

    def reads(self) -> None:
        if self.states is not None:
            self.states.reads(self._n_past)
        self._mark_prompt()

    def read(self, n: int) -> None:
        super().read(n)
        self._mark_prompt()

    def _mark_prompt(self) -> None:
        if self.states is not None and self.settings.exact:
            self.states.mark_prompt(self._n_past)

    def prepared(self, part: Part[OnnxPath]) -> list[int]:
        """Return what the next run has to know of the states, which are made ready for it."""
        assert self.states is not None
        return self.states.prepare(self._n_past, part.first, len(part.tokens), part.n_read, self.pool.settle)

    def drop_pending(self) -> None:
        self.pending = EMPTY
        if self.states is not None and self._n_past == 0:
            self.states.forget()
        self.tiles.cut(self._n_past)

    def _moved_up(self, path: Sequence[int]) -> int:
        if self.states is not None:
            self.states.writes()
        moved = [(node, place) for place, node in enumerate(path) if node != place]
        if moved:
            # Each moves towards the text, so none is overwritten before it is copied.
            sources, targets = (self.tiles.cells_of(np.array(each) + self._n_past) for each in zip(*moved, strict=True))
            self.pool.session.copy(sources, targets)
        return len(path)

    def _gone_back(self, n_past: int) -> int:
        return n_past if self.states is None else self.states.rollback(n_past, n_past=self._n_past)

    def hold(self) -> None:
        if self.states is not None and not self.settings.exact:
            self.drop_pending()
            self.states.mark(self._n_past)

    def _forked(self, n: int) -> tuple[Self, int]:
        fork = self._like()
        if self.states is not None:
            n = self.states.nearest(n)
            fork.states = self.states.fork(n, self._n_past + len(self.pending), self.pool.settle)
        fork.tiles, copies = self.tiles.fork(n)
        self.pool.copy_tiles(self.pool.session, copies)
        return fork, n

    def _like(self) -> Self:
        """Return an empty path that follows what this one follows."""
        return type(self)(self.pool)

    def _take_out(self, first: int, last: int) -> None:
        session, n_past = self.pool.session, self._n_past - (last - first)
        if self.states is not None:
            raise ValueError("states still know the tokens that would be taken out")
        # Shared cells are never turned: what moves gets cells of its own.
        self.pool.copy_tiles(session, self.pool.tiles.reserve([(self.tiles, first, n_past)]))
        targets = self.tiles.cells(first, n_past)
        session.copy(self.tiles.cells(last, self._n_past), targets)
        session.turn_back(targets, last - first)
        self.tiles.cut(n_past)

    def _write(self) -> bytes:
        body = self.pool.session.save(self.tiles.ids, self._n_past)
        return body if self.states is None else body + self.states.save(self._n_past, self.pool.settle)

    def _read(self, body: bytes, n_past: int) -> None:
        session = self.pool.session
        n_cells = len(body) - (self.states.n_bytes if self.states is not None else 0)
        if n_cells != session.state_bytes(n_past):
            raise StateError("the saved state is damaged", hint="read the text again instead")
        self.pool.tiles.reserve([(self.tiles, 0, n_past)])
        session.restore(body[:n_cells], self.tiles.cells(0, n_past))
        if self.states is not None:
            self.states.restore(body[n_cells:], n_past)

    def features(self, tail: bytes, name: str, width: int) -> PathFeatures:
        """See ``Session.give_features``."""
        return PathFeatures(self.pool.session.give_features(tail, name, width), self)


class PathFeatures:
    """What the pool of a path keeps for heads, place by place; see ``Features``."""

    def __init__(self, features: Features, path: OnnxPath) -> None:
        self.features = features
        self._path = path

    def on(self, path: Path) -> PathFeatures:
        """Return those of another path of the pool."""
        if not isinstance(path, OnnxPath):
            raise ValueError("a text of another pool")
        return PathFeatures(self.features, path)

    def __getitem__(self, places: slice) -> npt.NDArray[Any]:
        """Return the rows of some places, ``[n, width]``."""
        return self.features[self._cells(places)]

    def save(self, n: int) -> bytes:
        """Return the rows of the first ``n`` places as they are kept."""
        return self.features.save(self._cells(slice(n)))

    def restore(self, n: int, saved: bytes) -> bool:
        """Make the first ``n`` places what was saved of as many; False if that is damaged."""
        return self.features.restore(self._cells(slice(n)), saved)

    def _cells(self, places: slice) -> Cells:
        return self._path.tiles.cells_of(np.arange(*places.indices(len(self._path.tiles.ids) * TILE)))


def _numbers_of(parts: Sequence[Part[OnnxPath]]) -> list[int]:
    """Return the graph's input ``tree``, see ``kernels/src/attention_operator.c``."""
    numbers = [len(parts)]
    for part in parts:
        n, tiles = part.n_pending, part.path.tiles.ids
        numbers += (part.path.n_past, n, len(part.tokens), len(tiles))
        numbers += range(-1, n - 1) if part.tree is None else part.tree.parents
        numbers += tiles
    return numbers
