"""A model that is used for a single text."""

from __future__ import annotations

from typing import Any

__all__ = ["lone_text"]


def lone_text(pool: Any, like: Any = None) -> Any:
    """Return a path of a pool that goes with it: closing the path closes the pool."""
    path = pool.path(like)
    path.cancel, path.resume, path.close = pool.cancel, pool.resume, pool.close
    return path
