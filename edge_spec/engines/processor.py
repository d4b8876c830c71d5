"""The processor: how many cores there are, and what tells it from others."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["physical_cores", "processor"]


def physical_cores() -> int:
    """Cores that this process may run on, not counting hyperthreads twice."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def processor() -> str:
    """A text that differs between processors that may compute differently."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as info:
            lines = {line for line in info if line.startswith(("model name", "flags", "Features", "CPU part"))}
            return "".join(sorted(lines))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
