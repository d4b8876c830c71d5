"""Which processor this is."""

from __future__ import annotations

import platform
from pathlib import Path

__all__ = ["processor"]


def processor() -> str:
    """What tells processors apart that compute differently."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as info:
            lines = {line for line in info if line.startswith(("model name", "flags", "Features", "CPU part"))}
            return "".join(sorted(lines))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
