"""Watch whether memory is scarce, and decide when to act on it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from edge_spec.errors import EdgeSpecError
from edge_spec.memory.device import Readings, limits, probe, system_text
from edge_spec.memory.usage import resident_bytes

__all__ = ["EVERY_S", "IdleWatch", "Patience", "PressureReading", "PressureWatch", "memory_stall", "system_watch"]

_STALLED_PERCENT = 10.0
"""Of ten seconds in which some program waited for memory: from here on the system is thrashing."""


@dataclass(frozen=True, kw_only=True)
class PressureReading:
    """A reading of free memory and pressure.

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
    """Checks, at most every ``interval_s``, whether memory is scarce and whether there is room for more.

    Attributes:
        look: takes a reading.
        low_bytes: with less than this available, memory is scarce.
        clock: seconds; who acts on the readings goes by the same clock.
    """

    def __init__(
        self,
        look: Callable[[], PressureReading],
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

    def scarcity(self) -> PressureReading | None:
        """Return a reading; None if the last one is more recent than ``interval_s``."""
        now = self.clock()
        if now - self._last_s < self._interval_s:
            return None
        self._last_s = now
        return self.look()

    def is_scarce(self, seen: PressureReading) -> bool:
        """Return whether memory has to be freed."""
        stalled = seen.stalled_percent is not None and seen.stalled_percent >= _STALLED_PERCENT
        overdrawn = seen.left_bytes is not None and seen.left_bytes < 0
        return stalled or overdrawn or seen.available_bytes < self.low_bytes

    def has_room(self, seen: PressureReading, n_bytes: int) -> bool:
        """Return whether ``n_bytes`` can be taken without memory becoming scarce soon."""
        stalled = seen.stalled_percent is not None and seen.stalled_percent >= _STALLED_PERCENT / 10
        overdrawn = seen.left_bytes is not None and seen.left_bytes < n_bytes
        return not stalled and not overdrawn and seen.available_bytes >= 2 * self.low_bytes + n_bytes


def memory_stall(root: Path = Path("/")) -> float | None:
    """Percent of the last ten seconds in which some program waited for memory (Linux's pressure-stall information).

    That of the process's own control group where the system keeps one. That of the machine only where no group limits
    the process: inside a limit it would tell how others fare, whom nothing that is freed here can help. None where
    neither is known.
    """

    def text(path: str) -> str | None:
        return system_text(str(root / path.lstrip("/")))

    own = next((stall for place in _own_groups(text) if (stall := _stall(text(place))) is not None), None)
    if own is not None:
        return own
    (_, machine), *groups = limits(Readings(address_space=lambda: None, text=text))
    is_limited = any(limit.total_bytes < machine.total_bytes for _, limit in groups)
    return None if is_limited else _stall(text("/proc/pressure/memory"))


def system_watch(
    budget_bytes: int | None = None,
    *,
    resident: Callable[[], int] = resident_bytes,
    readings: Readings | None = None,
    stall: Callable[[], float | None] = memory_stall,
) -> PressureWatch:
    """Return a watch on this computer, the control groups that the process is in, and the process itself.

    Args:
        budget_bytes: if more than this is resident, memory is scarce, however much the computer has left; None where
            nobody set a limit, so that only what the computer has left counts.
        resident: reads what this process holds.
        readings: how the computer is asked.
        stall: reads in how much of the time programs waited for memory.
    """
    # A limit on address space bounds what can be asked for; it says nothing about what others need.
    readings = replace(readings or Readings(), address_space=lambda: None)
    low = min(max(probe(readings).total_bytes // 64, 8 << 20), 256 << 20)

    def look() -> PressureReading:
        return PressureReading(
            available_bytes=probe(readings).available_bytes,
            stalled_percent=stall(),
            left_bytes=None if budget_bytes is None else budget_bytes - resident(),
        )

    return PressureWatch(look, low_bytes=low)


def _own_groups(text: Callable[[str], str | None]) -> Iterator[str]:
    """Yield possible paths of the pressure of this process's control group."""
    for line in (text("/proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            group = line[3:].strip("/")
            yield f"/sys/fs/cgroup/{group}/memory.pressure"
            # Where version 1 limits memory, version 2 may also have groups; its root group is the machine.
            if group:
                yield f"/sys/fs/cgroup/unified/{group}/memory.pressure"


def _stall(told: str | None) -> float | None:
    """Return the percentage in a pressure file; None if there is no such file, or no percentage in it."""
    with suppress(ValueError, IndexError, StopIteration):
        some = next(line for line in (told or "").splitlines() if line.startswith("some"))
        return float(next(part for part in some.split() if part.startswith("avg10=")).partition("=")[2])
    return None


_LONGEST_S = 600.0


class Patience:
    """Delays steps down and up, so that two programs do not alternately take the same memory.

    A step up comes only after memory was plentiful for a while. That while doubles whenever memory became scarce again
    soon after a step up, or a step up failed, since trying costs as much as succeeding.

    Args:
        clock: seconds.
        patience_s: seconds of plenty before the first step up.
        settle_s: seconds that memory gets to come back before the next step down.
    """

    def __init__(self, clock: Callable[[], float], *, patience_s: float = 20.0, settle_s: float = 1.0) -> None:
        self._clock = clock
        self._patience_s = self._first_patience_s = patience_s
        self._settle_s = settle_s
        self._plenty_since_s: float | None = None
        self._down_s = self._up_s = float("-inf")

    def may_step_down(self) -> bool:
        """Note that memory is scarce; return whether to free some now."""
        self._plenty_since_s = None
        return self._clock() - self._down_s >= self._settle_s

    def stepped_down(self) -> None:
        """Note that some was freed."""
        self._down_s = self._clock()
        soon = self._down_s - self._up_s < self._patience_s
        self._patience_s = min(2 * self._patience_s, _LONGEST_S) if soon else self._first_patience_s

    def may_step_up(self, has_room: bool) -> bool:
        """Note whether memory has room for a step up; return whether to take it now."""
        now = self._clock()
        if not has_room:
            self._plenty_since_s = None
            return False
        if self._plenty_since_s is None:
            self._plenty_since_s = now
        return now - self._plenty_since_s >= self._patience_s

    def stepped_up(self, *, worked: bool) -> None:
        """Note that a step up was tried."""
        self._plenty_since_s, self._up_s = None, self._clock()
        if not worked:
            self._patience_s = min(2 * self._patience_s, _LONGEST_S)


EVERY_S = 1.0
"""Seconds between two checks. Replies check before every round, too."""


class IdleWatch:
    """Calls a method regularly in a thread of its own, until its owner is gone or it is closed.

    It goes on after an error: memory may be needed more then. Unexpected errors are logged, once.

    Args:
        look: a method; its object is not kept alive.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._over = threading.Event()
        found = weakref.WeakMethod(look)
        self._thread = threading.Thread(
            target=_watch, args=(found, self._over, EVERY_S), name="edge-spec memory", daemon=True
        )
        # At the end of the program as well: a thread must not be inside a library that is being taken down.
        self._finish = weakref.finalize(look.__self__, _stop, self._over, self._thread)  # type: ignore[attr-defined]
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the watch has ended."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """End the watch, and wait for a running check. Safe to call twice."""
        self._finish()


def _watch(look: weakref.WeakMethod[Callable[[], object]], over: threading.Event, every_s: float) -> None:
    was_logged = False
    while not over.wait(every_s):
        method = look()
        if method is None:
            return
        try:
            method()
        except (EdgeSpecError, MemoryError, OSError):
            # Try again later.
            pass
        except Exception as error:
            if not was_logged:
                was_logged = True
                kind = type(error).__name__
                logging.getLogger(__name__).warning("checking memory failed (%s: %s)", kind, error)
        del method


def _stop(over: threading.Event, thread: threading.Thread) -> None:
    over.set()
    # The check itself may have held the last reference to the owner.
    if thread is not threading.current_thread():
        thread.join()
