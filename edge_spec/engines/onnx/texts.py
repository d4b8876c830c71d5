"""Slots of texts on top of a pool's paths; see ``Texts``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from edge_spec.errors import Closed, ContextFull
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import TILE, Path, Pool
from edge_spec.speculation.tree import Tree

__all__ = ["PoolTexts", "slots_cells"]


def slots_cells(n_slots: int, n_tokens: int) -> int:
    """Return the cells that so many slots take."""
    return n_slots * (n_tokens + -n_tokens % TILE)


class PoolTexts:
    """See ``Texts``. The pool has their cells besides its own until they are closed."""

    def __init__(self, pool: Pool, n_slots: int, n_tokens: int) -> None:
        self.n_slots = n_slots
        self._pool: Pool | None = pool
        self._n_tokens = n_tokens
        self._n_cells = pool.n_cells
        pool.resize(pool.n_cells + slots_cells(n_slots, n_tokens))
        self._paths: list[Path] = [pool.path() for _ in range(n_slots)]

    def read(self, slot: int, tokens: Sequence[int]) -> None:
        self._require_room(slot, len(tokens))
        self._paths[slot].prefill(tokens)

    def decode(self, tokens: Mapping[int, int]) -> Logits:
        for slot in tokens:
            self._require_room(slot, 1)
        rows = self._open().decode([(self._paths[slot], Tree.sequence([token])) for slot, token in tokens.items()])
        for slot in tokens:
            self._paths[slot].keep([0])
        return np.concatenate(rows)

    def copy(self, source: int, slot: int, n: int) -> None:
        if source == slot:
            self.rollback(slot, n)
        else:
            self._paths[slot].close()
            self._paths[slot] = self._paths[source].fork(n)

    def rollback(self, slot: int, n: int) -> None:
        self._paths[slot].rollback(n)

    def hidden_rows(self, slot: int) -> None:
        raise ValueError("this cache was not asked to keep hidden states")

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            for path in self._paths:
                path.close()
            with suppress(Closed):
                pool.resize(self._n_cells)

    def _require_room(self, slot: int, n_new: int) -> None:
        n_past = self._paths[slot].n_past
        if n_past + n_new > self._n_tokens:
            raise ContextFull(n_past=n_past, n_new=n_new, n_ctx=self._n_tokens)

    def _open(self) -> Pool:
        if self._pool is None:
            raise Closed("the cache of several texts")
        return self._pool
