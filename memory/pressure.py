"""Whether memory is scarce while a program runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from edge_spec.memory.device import Readings, probe
from edge_spec.memory.usage import resident_bytes

__all__ = ["PressureWatch", "Squeeze", "memory_stall", "system_watch"]

_STALLED_PERCENT = 10.0
"""Of ten seconds in which some program waited for memory: from here on the system is thrashing."""


@dataclass(frozen=True, kw_only=True)
class Squeeze:
    """One reading.

    Attributes:
        available_bytes: what could be allocated now.
        stalled_percent: share of the last seconds in which some program waited for memory; None if the system does
            not tell.
        left_bytes: what this process's budget leaves, negative if it holds more; None without a budget.
    """

    available_bytes: int
    stalled_percent: float | None = None
    left_bytes: int | None = None


class PressureWatch:
    """Tells, at most every ``interval_s``, whether memory is scarce and whether there is room for more.

    Attributes:
        look: takes a reading.
        low_bytes: with less than this available, memory is scarce.
        clock: seconds; who acts on the readings goes by the same clock.
    """

    def __init__(
        self,
        look: Callable[[], Squeeze],
        *,
        low_bytes: int,
        interval_s: float = 0.5,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.look = look
        self.low_bytes = low_bytes
        self._interval_s = interval_s
        self.clock = clock
        self._last_s = float("-inf")

    def scarcity(self) -> Squeeze | None:
        """A reading, or None if the last one was a moment ago."""
        now = self.clock()
        if now - self._last_s < self._interval_s:
            return None
        self._last_s = now
        return self.look()

    def is_scarce(self, seen: Squeeze) -> bool:
        """Whether memory has to be freed."""
        stalled = seen.stalled_percent is not None and seen.stalled_percent >= _STALLED_PERCENT
        overdrawn = seen.left_bytes is not None and seen.left_bytes < 0
        return stalled or overdrawn or seen.available_bytes < self.low_bytes

    def has_room(self, seen: Squeeze, n_bytes: int) -> bool:
        """Whether ``n_bytes`` can be taken without memory becoming scarce soon."""
        stalled = seen.stalled_percent is not None and seen.stalled_percent >= _STALLED_PERCENT / 10
        overdrawn = seen.left_bytes is not None and seen.left_bytes < n_bytes
        return not stalled and not overdrawn and seen.available_bytes >= 2 * self.low_bytes + n_bytes


def system_watch(budget_bytes: int | None = None, *, resident: Callable[[], int] = resident_bytes) -> PressureWatch:
    """A watch on this computer, the control groups that the process is in, and the process itself.

    Args:
        budget_bytes: if more than this is resident, memory is scarce, however much the computer has left.
        resident: reads what this process holds.
    """
    # A limit on address space bounds what can be asked for; it says nothing about what others need.
    readings = Readings(address_space=lambda: None)
    low = min(max(probe(readings).total_bytes // 64, 8 << 20), 256 << 20)

    def look() -> Squeeze:
        return Squeeze(
            available_bytes=probe(readings).available_bytes,
            stalled_percent=memory_stall(),
            left_bytes=None if budget_bytes is None else budget_bytes - resident(),
        )

    return PressureWatch(look, low_bytes=low)


def memory_stall(root: Path = Path("/")) -> float | None:
    """Percent of the last ten seconds in which some program waited for memory (Linux's pressure-stall information).

    That of the process's own control group where it has one. None where the system keeps no such figures.
    """
    for path in (_own_group(root), root / "proc/pressure/memory"):
        with suppress(OSError, ValueError, IndexError, StopIteration):
            if path is not None:
                some = next(line for line in path.read_text().splitlines() if line.startswith("some"))
                return float(next(part for part in some.split() if part.startswith("avg10=")).partition("=")[2])
    return None


def _own_group(root: Path) -> Path | None:
    """The pressure file of the control group (version 2) that this process runs in."""
    with suppress(OSError, StopIteration):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        group = next(line for line in lines if line.startswith("0::"))[3:].strip("/")
        return root / "sys/fs/cgroup" / group / "memory.pressure"
    return None
