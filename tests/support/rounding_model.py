"""A model whose rows and cells say how they were rounded, without any file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from edge_spec.engines.probe import PLAIN
from edge_spec.engines.settings import ModelSettings
from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.tree import EMPTY, Tree

Rounds = Callable[[int, int, int], int]
"""How something rounds by rows of the decode, cells before it, and number of the row; equal numbers are equal bits."""


def exact(n_rows: int, n_past: int, row: int) -> int:
    return 0


class RoundingModel:
    """A model whose rows and cells are hashes of the text and of how they were rounded. It is its only path.

    A cell's rounding reaches the rows after it, as in a real model.
    """

    max_paths = 1

    def __init__(self, *, rows: Rounds = exact, cells: Rounds = exact, **values: Any) -> None:
        self.settings = ModelSettings(**({"n_ctx": 640, "trees": True} | values))
        self.n_vocab, self.n_ctx = 5000, self.settings.n_ctx
        self.capabilities: Capabilities = PLAIN
        self.profile = NumericsProfile(engine="rounding")
        self.kept = None
        self._rows, self._cells = rows, cells
        self._cache: list[bytes] = []
        self._pending: Tree = EMPTY
        self._pending_cells: list[bytes] = []

    @property
    def pool(self) -> RoundingModel:
        return self

    def path(self) -> RoundingModel:
        return self

    @property
    def n_past(self) -> int:
        return len(self._cache)

    def _cell(self, above: Sequence[bytes], token: int, rounding: int) -> bytes:
        return blake2b(b"".join([*above[-1:], b"%d %d" % (token, rounding)]), digest_size=8).digest()

    def prefill(self, tokens: Sequence[int]) -> None:
        assert self.n_past + len(tokens) <= self.n_ctx
        for token in tokens:
            self._cache.append(self._cell(self._cache, token, 0))

    def decode(self, tree: Tree) -> Logits:
        assert 1 <= len(tree) <= self.settings.max_rows
        assert self.n_past + len(tree) <= self.n_ctx + self.settings.max_rows
        n_rows = self.capabilities.padded(len(tree))
        cells: list[bytes] = []
        rows = np.zeros((len(tree), 4), np.float32)
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            above = [cells[parent]] if parent >= 0 else self._cache
            cells.append(self._cell(above, token, self._cells(n_rows, self.n_past, node)))
            seen = self._cell(above, token, self._rows(n_rows, self.n_past, node) + 1000)
            rows[node] = np.frombuffer(seen, np.uint16)
        self._pending, self._pending_cells = tree, cells
        return rows

    def keep(self, path: Sequence[int]) -> None:
        self._cache += [self._pending_cells[node] for node in path]
        self._pending = EMPTY

    def rollback(self, n_past: int) -> None:
        assert n_past <= self.n_past
        del self._cache[n_past:]
        self._pending = EMPTY

    def save(self) -> bytes:
        return b"".join(self._cache)

    def shift(self, first: int, last: int) -> None:
        raise NotImplementedError

    def restore(self, state: bytes) -> None:
        raise NotImplementedError

    def cancel(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None:
        self.rollback(0)
