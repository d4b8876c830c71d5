"""A clock that a law moves, so that what ends by time ends at the same place on every machine."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

__all__ = ["Clock"]


@dataclass
class Clock:
    """The clock by which replies end, or rounds are measured.

    Attributes:
        now: what it shows, in seconds.
        tick: seconds by which it advances whenever somebody looks.
    """

    now: float = 0.0
    tick: float = 0.0

    @classmethod
    def of_replies(cls, monkeypatch: pytest.MonkeyPatch, tick: float = 0.0) -> Clock:
        """Return a clock that all replies of a test go by."""
        clock = cls(tick=tick)
        monkeypatch.setattr("edge_spec.generation.request.monotonic", clock)
        return clock

    @classmethod
    def of_rounds(cls, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """Return a clock by which all rounds of a test are measured."""
        clock = cls()
        for module in ("generation.scheduler", "speculation.loop", "speculation.round"):
            monkeypatch.setattr(f"edge_spec.{module}.perf_counter", clock)
        return clock

    def __call__(self) -> float:
        self.now += self.tick
        return self.now
