"""Freed memory that the C library keeps."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

__all__ = ["trim_heap"]


def trim_heap() -> None:
    """Return freed memory to the system. Only glibc keeps 64 MiB and more of it; elsewhere this does nothing."""
    _trim()()


@cache
def _trim() -> Callable[[], object]:
    if sys.platform == "linux":
        found = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if found is not None:
            found.argtypes = [ctypes.c_size_t]
            return lambda: found(0)
    return lambda: None
