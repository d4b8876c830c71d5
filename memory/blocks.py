"""Blocks of memory that large pages can hold, and that are given back piece by piece."""

from __future__ import annotations

import mmap

__all__ = ["give_back", "new_block"]

_LARGE_BYTES = 4 << 20
"""From this size on large pages are asked for, as NumPy does: less would waste most of one."""


def new_block(n_bytes: int) -> mmap.mmap:
    """Return a block of zeros, which take no memory before they are written.

    Raises:
        MemoryError: there is no room for it.
    """
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):
            return mmap.mmap(-1, n_bytes)
        block = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError) as error:
        raise MemoryError(f"no block of {n_bytes} bytes: {error}") from None
    if hasattr(mmap, "MADV_HUGEPAGE") and n_bytes >= _LARGE_BYTES:
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def give_back(block: mmap.mmap, n_bytes: int) -> None:
    """Give the first bytes of a block back, where the system can do that; their contents are lost then."""
    n_bytes -= n_bytes % mmap.PAGESIZE
    if hasattr(mmap, "MADV_DONTNEED") and n_bytes:
        block.madvise(mmap.MADV_DONTNEED, 0, n_bytes)
