"""What a running program gives up when memory gets scarce, and in which order."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from edge_spec.memory.pressure import PressureWatch, Squeeze

__all__ = ["Ladder", "Rung"]

_LONGEST_PATIENCE_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A step down.

    Attributes:
        name: what is given up, as the end of a sentence.
        down: gives it up; False if there is nothing to give up, which counts as done.
        up: takes it back, or says with False that it could not; None if it cannot be undone at all.
        n_bytes: memory that it frees, and that going back up takes.
        lossless: whether the text stays the same, bit for bit.
        repeats: it can be asked for again and again, and is never given up for good.
    """

    name: str
    down: Callable[[], bool]
    up: Callable[[], object] | None
    n_bytes: Callable[[], int] = lambda: 0
    lossless: Callable[[], bool] = lambda: True
    repeats: bool = False


class Ladder:
    """Steps down while memory is scarce and climbs back when there is room again, one rung per look.

    It costs speed first and text last: rungs that change the text come after all others, and are announced. It climbs
    only after memory was plentiful for a while, and the longer the more often it had to step down again soon: two
    programs on one computer must not swing against each other. What cannot be undone stays
    given up, whatever comes back.

    Args:
        rungs: in the order in which things are given up.
        watch: looks at the system.
        on_step: told, in a sentence, what was given up or taken back, and whether the text may change by it.
        patience_s: seconds of plenty before the first climb.
        settle_s: seconds that memory gets to come back before the next step down.
    """

    def __init__(
        self,
        rungs: Sequence[Rung],
        watch: PressureWatch,
        *,
        on_step: Callable[[str, bool], object] = lambda sentence, lossless: None,
        patience_s: float = 20.0,
        settle_s: float = 1.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._rungs = tuple(rungs)
        self._watch = watch
        self._on_step = on_step
        self._patience_s = self._first_patience_s = patience_s
        self._settle_s = settle_s
        self._clock = clock
        # Places of the rungs that are given up, in order; those with nothing to give up are not among them.
        self._given_up: list[int] = []
        # Where the next step down begins to look; rungs that had nothing are not asked again at every step.
        self._next = 0
        self._plenty_since_s: float | None = None
        self._stepped_s = self._climbed_s = float("-inf")

    @property
    def degradations(self) -> tuple[str, ...]:
        """Names of what is given up now, in order."""
        return tuple(self._rungs[place].name for place in self._given_up)

    def check(self, *, lossless_only: bool = False) -> None:
        """Look at the system, if it is time, and take at most one step. To be called between two rounds.

        Args:
            lossless_only: take no step that changes the text, for want of somebody to tell.
        """
        seen = self._watch.scarcity()
        if seen is None:
            return
        now = self._clock()
        if self._watch.is_scarce(seen):
            self._plenty_since_s = None
            if now - self._stepped_s >= self._settle_s:
                self._step_down(now, lossless_only)
        elif self._can_climb(seen, lossless_only):
            if self._plenty_since_s is None:
                self._plenty_since_s = now
            if now - self._plenty_since_s >= self._patience_s:
                self._climb(now)
        else:
            self._plenty_since_s = None

    def _last_to_climb(self) -> int | None:
        """The last rung that can be undone, of those that are given up."""
        return next((place for place in reversed(self._given_up) if self._rungs[place].up is not None), None)

    def _can_climb(self, seen: Squeeze, lossless_only: bool) -> bool:
        place = self._last_to_climb()
        if place is None or (lossless_only and not self._rungs[place].lossless()):
            return False
        return self._watch.has_room(seen, self._rungs[place].n_bytes())

    def _step_down(self, now: float, lossless_only: bool) -> None:
        soon = now - self._climbed_s < self._patience_s
        self._patience_s = min(2 * self._patience_s, _LONGEST_PATIENCE_S) if soon else self._first_patience_s
        for place in range(self._next, len(self._rungs)):
            rung = self._rungs[place]
            if place in self._given_up:
                continue
            lossless = rung.lossless()
            if lossless_only and not lossless:
                return
            if rung.down():
                if not rung.repeats:
                    insort(self._given_up, place)
                    self._next = place + 1
                self._stepped_s = now
                self._on_step(f"memory is scarce: {rung.name}", lossless)
                return

    def _climb(self, now: float) -> None:
        place = self._last_to_climb()
        assert place is not None
        rung = self._rungs[place]
        assert rung.up is not None
        self._plenty_since_s, self._climbed_s = None, now
        if rung.up() is False:
            # Trying costs as much as doing it.
            self._patience_s = min(2 * self._patience_s, _LONGEST_PATIENCE_S)
            return
        self._given_up.remove(place)
        self._next = place
        self._on_step(f"memory is free again, no longer: {rung.name}", rung.lossless())
