"""The cells of a published graph, which hold one text; see ``edge_spec/speculation/pool.py``.

Those of the committed text are the first ones of the cache, in order, and the nodes of a pending tree follow them in
theirs. So going back only lowers a count, and keeping a side branch moves its cells up to the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from edge_spec.engines.onnx.published import PublishedSession
from edge_spec.engines.onnx.session_pool import SessionPool
from edge_spec.engines.pool import CachedPath, Part
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import BackendError, PoolFull, StateError
from edge_spec.memory.usage import trim_heap
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import Path
from edge_spec.speculation.tree import EMPTY

__all__ = ["PublishedPath", "PublishedPool"]


class PublishedPool(SessionPool["PublishedPath", PublishedSession]):
    """See ``Pool``. Its session has room for ``settings.n_cells`` tokens."""

    _most_paths = 1
    n_shared = text_bytes = 0

    def __init__(self, session: PublishedSession, settings: ModelSettings, **given: Any) -> None:
        super().__init__(session, settings, **given)
        self.n_cells, self.cell_bytes = settings.n_cells - settings.max_rows, session.cell_bytes
        # Who has the cells.
        self._holder: PublishedPath | None = None

    @property
    def n_free(self) -> int:
        return self.n_cells - (self._holder.n_held if self._holder is not None else 0)

    def path(self, like: Path | None = None) -> PublishedPath:
        return PublishedPath(self)

    def n_more(self, path: Path, n: int) -> int:
        n = max(0, n - len(self._mine(path).pending))
        return n if self._holder in (None, path) else max(n, self.n_free + 1)

    def _reserve(self, parts: Sequence[Part[PublishedPath]]) -> None:
        for part in parts:
            self.require_alone(part.path, part.n_pending)

    def require_alone(self, path: PublishedPath, n: int = 1) -> None:
        """Give the cells to a path, if it needs any.

        Raises:
            PoolFull: another one has them.
        """
        if n and self._holder not in (None, path):
            raise PoolFull(n_free=0, n_needed=1, n_texts=self.max_paths)
        self._holder = path if n else self._holder

    def leave(self, path: PublishedPath) -> None:
        """Another path may have the cells."""
        if self._holder is path:
            self._holder = None

    def _compute(self, parts: Sequence[Part[PublishedPath]], *, is_decode: bool) -> Logits:
        (part,), session = parts, self.session
        n = len(part.tokens)
        n_run = self.capabilities.padded(n)
        # What is computed of padding is overwritten by the next run.
        session.ids[:n] = part.tokens
        session.ids[n:n_run] = part.tokens[-1]
        # Rows of padding, too: the others might round otherwise.
        rows = session.run(part, n_run, range(n_run) if is_decode else range(n - 1, n))
        if n > self.settings.max_rows:
            # What the runtime gives back the C library keeps in fragments, more with every chunk.
            trim_heap()
        return rows[:n]

    def resize(self, n_cells: int) -> None:
        if n_cells > self.n_cells:
            raise MemoryError("the cells of a published graph are as many as one text needs")


class PublishedPath(CachedPath[PublishedPool]):
    """See ``Path``."""

    @property
    def n_held(self) -> int:
        """How many cells it has."""
        return self._n_past + len(self.pending)

    def drop_pending(self) -> None:
        self.pending = EMPTY
        if self._n_past == 0:
            self.pool.leave(self)

    def _moved_up(self, path: Sequence[int]) -> int:
        moved = [(place, node) for place, node in enumerate(path) if node != place]
        if moved:
            targets, sources = (np.array(cells) + self._n_past for cells in zip(*moved, strict=True))
            self.pool.session.move(sources, targets)
        return len(path)

    def _forked(self, n: int) -> tuple[Self, int]:
        fork = type(self)(self.pool)
        self.pool.require_alone(fork, n)
        return fork, n

    def _take_out(self, first: int, last: int) -> None:
        # It is not known how an external graph turns its keys.
        raise BackendError("the cache of a published graph cannot be shifted", hint="start again with a shorter text")

    def _write(self) -> bytes:
        return self.pool.session.save(self._n_past)

    def _read(self, body: bytes, n_past: int) -> None:
        self.pool.require_alone(self, n_past)
        if not self.pool.session.restore(body, n_past):
            self.pool.leave(self)
            raise StateError("the saved state is damaged", hint="read the text again instead")
