"""Whether memory is getting scarce while a program runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from edge_spec.memory.device import Readings, probe

__all__ = ["PressureWatch", "Squeeze", "memory_stall", "system_watch"]

_STALLED_PERCENT = 10.0
"""Of ten seconds, in which some program waited for memory: from here on the system is thrashing."""


@dataclass(frozen=True, kw_only=True)
class Squeeze:
    """One look at the system.

    Attributes:
        available_bytes: that could be asked for now.
        stalled_percent: of the last seconds, in which some program waited for memory; None if the system cannot tell.
    """

    available_bytes: int
    stalled_percent: float | None = None


class PressureWatch:
    """Tells, at most every ``interval_s``, whether to give memory back or whether there is room for more.

    Args:
        look: reads the system.
        low_bytes: with less than this available, memory is scarce.
        clock: seconds.
    """

    def __init__(
        self,
        look: Callable[[], Squeeze],
        *,
        low_bytes: int,
        interval_s: float = 0.5,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._look = look
        self.low_bytes = low_bytes
        self._interval_s = interval_s
        self._clock = clock
        self._last_s = float("-inf")

    def scarcity(self) -> Squeeze | None:
        """A look at the system, or None if the last one was a moment ago."""
        now = self._clock()
        if now - self._last_s < self._interval_s:
            return None
        self._last_s = now
        return self._look()

    def is_scarce(self, seen: Squeeze) -> bool:
        """Whether memory has to be given back."""
        stalled = seen.stalled_percent is not None and seen.stalled_percent >= _STALLED_PERCENT
        return stalled or seen.available_bytes < self.low_bytes

    def has_room(self, seen: Squeeze, n_bytes: int) -> bool:
        """Whether so much can be taken without memory becoming scarce soon: as much again stays free."""
        stalled = seen.stalled_percent is not None and seen.stalled_percent >= _STALLED_PERCENT / 10
        return not stalled and seen.available_bytes >= 2 * self.low_bytes + n_bytes


def system_watch() -> PressureWatch:
    """A watch on this computer: its memory and the control groups that the process is in."""
    # A limit on address space bounds what can be asked for, and says nothing of what others need.
    readings = Readings(address_space=lambda: None)
    low = min(max(probe(readings).total_bytes // 64, 8 << 20), 256 << 20)

    def look() -> Squeeze:
        return Squeeze(available_bytes=probe(readings).available_bytes, stalled_percent=memory_stall())

    return PressureWatch(look, low_bytes=low)


def memory_stall(root: Path = Path("/")) -> float | None:
    """Percent of the last ten seconds in which some program waited for memory (Linux's pressure-stall information).

    That of the own control group where there is one. None where the system keeps no such figures.
    """
    for path in (_own_group(root), root / "proc/pressure/memory"):
        with suppress(OSError, ValueError, IndexError, StopIteration):
            if path is not None:
                some = next(line for line in path.read_text().splitlines() if line.startswith("some"))
                return float(next(part for part in some.split() if part.startswith("avg10=")).partition("=")[2])
    return None


def _own_group(root: Path) -> Path | None:
    """The file of the control group (version 2) that this process runs in."""
    with suppress(OSError, StopIteration):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        group = next(line for line in lines if line.startswith("0::"))[3:].strip("/")
        return root / "sys/fs/cgroup" / group / "memory.pressure"
    return None
