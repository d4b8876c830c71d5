"""Models whose memory gets scarce when a test says so, and engines that refuse to open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge_spec import TextModel
from edge_spec.engines.base import ModelSettings, OpenedModel
from edge_spec.errors import BackendError
from edge_spec.memory.pressure import PressureReading, PressureWatch

ASKED = ("Hello, who are you?", "Tell me a story about a dog.", "And then?", "Where is it?")


PLENTY, SCARCE = 1 << 40, 0


class SimulatedMemory:
    """A memory that gets scarce and plentiful when it is told to, and time that flies."""

    def __init__(self, decide: Callable[[], int]) -> None:
        self._decide = decide
        self.now = 0.0

    def clock(self) -> float:
        self.now += 100.0
        return self.now

    def watch(self) -> PressureWatch:
        def look() -> PressureReading:
            return PressureReading(available_bytes=self._decide())

        return PressureWatch(look, low_bytes=100, interval_s=0.0, clock=self.clock)


Change = Callable[[ModelSettings, Callable[[], OpenedModel]], OpenedModel]


def refused(settings: ModelSettings) -> OpenedModel:
    raise BackendError("no memory")


def converse(model: TextModel, **values: Any) -> list[Any]:
    seen: list[Any] = []
    session = model.chat("You are a friend.", seed=3, max_tokens=40, on_notice=seen.append, **values)
    for text in ASKED:
        session.send(text).read()
    return [*seen, *session.messages]


def changed(change: Callable[[Any], Any]) -> Change:
    """Lets every target that is opened be changed by ``change``, or what that raises."""

    def opened(settings: ModelSettings, open_it: Callable[[], OpenedModel]) -> OpenedModel:
        found = open_it()
        if settings.exact:
            change(found.pool)
        return found

    return opened
