"""Table models whose computing is watched, or rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from edge_spec.speculation.language_model import Logits
from edge_spec.testing import TableModel

__all__ = ["rounding", "watch"]

T = TypeVar("T", bound=TableModel)


def watch(model: TableModel, watched: Callable[[Sequence[Any], bool], None]) -> None:
    """Have a function called with the parts of every run, and whether it is a decode, before it is computed."""
    pool, compute = model.pool, model.pool._compute

    def seen(parts: Any, *, is_decode: bool) -> Logits:
        watched(parts, is_decode)
        return compute(parts, is_decode=is_decode)

    pool._compute = seen  # type: ignore[method-assign]


def rounding(model: T, distort: Callable[[Logits, int], Logits]) -> T:
    """Let a model have a kernel that rounds: it is given a row, and the number of rows of its decode."""
    pool, row = model.pool, model.pool.row
    pool.row = lambda text, n_rows: distort(row(text, n_rows), n_rows)  # type: ignore[method-assign]
    return model
