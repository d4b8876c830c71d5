"""Blocks of memory for large pages, which can be returned to the system piece by piece."""

from __future__ import annotations

import mmap

__all__ = ["give_back", "new_block"]

_LARGE_BYTES = 4 << 20
"""From this size on request large pages, as NumPy does: a smaller block would waste most of one."""


def new_block(n_bytes: int) -> mmap.mmap:
    """Return a block of zeros, which takes no memory before it is written.

    Raises:
        MemoryError: there is too little memory.
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
    """Return the first bytes of a block to the system, if it can take them; their contents are lost."""
    n_bytes -= n_bytes % mmap.PAGESIZE
    if hasattr(mmap, "MADV_DONTNEED") and n_bytes:
        block.madvise(mmap.MADV_DONTNEED, 0, n_bytes)
