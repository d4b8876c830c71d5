"""Memory that the C library keeps for later."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

__all__ = ["trim_heap"]


def trim_heap() -> None:
    """Give back to the system what was freed. Only glibc hoards up to 64 MiB and more; elsewhere this does nothing."""
    _trim()()


@cache
def _trim() -> Callable[[], object]:
    if sys.platform == "linux":
        found = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if found is not None:
            found.argtypes = [ctypes.c_size_t]
            return lambda: found(0)
    return lambda: None
