"""How many threads a computation can use."""

from __future__ import annotations

import os

__all__ = ["physical_cores"]


def physical_cores() -> int:
    """Cores that this process may run on, not counting hyperthreads twice."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))
