"""Memory that this process holds, as the operating system counts it."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from edge_spec.memory.device import system_text, whole_number

__all__ = ["Usage", "resident_bytes", "trim_heap", "usage"]


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Memory that a process holds.

    Attributes:
        resident_bytes: all of its pages in memory, those of mapped files and shared libraries included. On macOS the
            physical footprint, which is what the system judges a process by.
        unique_bytes: without pages that other processes share.
        anonymous_bytes: not backed by a file, so it cannot be dropped and read again. Where the system does not tell,
            the same as ``unique_bytes``.
    """

    resident_bytes: int
    unique_bytes: int
    anonymous_bytes: int


def usage(text: Callable[[str], str | None] = system_text) -> Usage:
    """Return what this process holds now.

    Args:
        text: reads a small system file, None if it cannot be read.
    """
    found = _rollup(text("/proc/self/smaps_rollup") or "")
    if found is not None:
        return found
    if sys.platform == "darwin":
        footprint = _physical_footprint()
        if footprint is not None:
            return Usage(resident_bytes=footprint, unique_bytes=footprint, anonymous_bytes=footprint)
    import psutil

    process = psutil.Process()
    try:
        full = process.memory_full_info()
        return Usage(resident_bytes=full.rss, unique_bytes=full.uss, anonymous_bytes=full.uss)
    except psutil.Error:
        resident = int(process.memory_info().rss)
        return Usage(resident_bytes=resident, unique_bytes=resident, anonymous_bytes=resident)


def resident_bytes(text: Callable[[str], str | None] = system_text) -> int:
    """``usage().resident_bytes``, without walking all pages as Linux does for the rest; may be off by some 100 KiB.

    Args:
        text: as for ``usage``.
    """
    pages = (text("/proc/self/statm") or "").split()
    n_pages = whole_number(pages[1]) if len(pages) > 1 else None
    return n_pages * mmap.PAGESIZE if n_pages is not None else usage(text).resident_bytes


def _rollup(text: str) -> Usage | None:
    """Linux: the sum over all mappings, in KiB."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        size = whole_number(rest.removesuffix("kB"))
        if size is not None:
            sizes[name] = size << 10
    if not {"Rss", "Private_Clean", "Private_Dirty", "Anonymous"} <= sizes.keys():
        return None
    return Usage(
        resident_bytes=sizes["Rss"],
        unique_bytes=sizes["Private_Clean"] + sizes["Private_Dirty"],
        anonymous_bytes=sizes["Anonymous"],
    )


def _physical_footprint() -> int | None:
    """macOS: ``ri_phys_footprint`` of ``proc_pid_rusage``; resident pages there leave out compressed ones."""
    # struct rusage_info_v2: 16 bytes of uuid, then 64-bit numbers, the eighth of which is the footprint.
    buffer = (ctypes.c_uint64 * 64)()
    try:
        libc = ctypes.CDLL(None)
        if libc.proc_pid_rusage(os.getpid(), 2, ctypes.byref(buffer)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return int(buffer[2 + 7])


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
