"""How long this process's threads have computed, and how long they waited for a core that others had."""

from __future__ import annotations

from pathlib import Path

__all__ = ["processor_time"]

_THREADS = Path("/proc/self/task")


def processor_time() -> tuple[float, float] | None:
    """Return both in seconds, of the threads that there are; None where the system does not tell, as on any but Linux.

    See ``Documentation/scheduler/sched-stats.rst`` of Linux.
    """
    try:
        threads = [path.read_text("ascii").split() for path in _THREADS.glob("*/schedstat")]
        computed, waited = (sum(int(each[place]) for each in threads) / 1e9 for place in (0, 1))
    except (OSError, ValueError, IndexError):
        return None
    return (computed, waited) if threads else None
