"""Laws of the thread that writes for all requests: who comes together is written together from the first round."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from server_world import wait_until

from edge_spec.errors import BudgetExceeded
from edge_spec.memory import Ledger, Loan
from edge_spec.model import TextModel
from edge_spec.server import writing
from edge_spec.server.service import Service
from edge_spec.server.settings import ServerSettings
from edge_spec.server.work_queue import WorkQueue
from edge_spec.server.writing import Work, Writer


class _Asked:
    """What a writer needs of work; ends after its first look."""

    replies = None

    def __init__(self, writer: list[Writer], acts: list[str], name: str, then: _Asked | None = None) -> None:
        self._writer, self._acts, self._name, self._then = writer, acts, name, then

    def begin(self) -> None:
        self._acts.append(f"{self._name} begins")
        if self._then is not None:
            self._writer[0].write(self._then)  # type: ignore[arg-type]

    def take_ready(self, reader: object) -> bool:
        self._acts.append(f"{self._name} is read")
        return False

    def take_held(self, *, is_over: bool) -> list[Any]:
        return []


@pytest.mark.parametrize("n_coming", [0, 1])
def test_requests_on_their_way_begin_before_the_first_round(monkeypatch: pytest.MonkeyPatch, n_coming: int) -> None:
    # Whoever is coming comes, however slow the machine is.
    monkeypatch.setattr(writing, "_GATHER_S", 60.0)
    writers, acts, loop = list[Writer](), list[str](), asyncio.new_event_loop()
    writers.append(Writer(loop, lambda: n_coming - acts.count("second begins")))
    # The first one waits for the second one only while that is on its way.
    second = _Asked(writers, acts, "second")
    writers[0].write(_Asked(writers, acts, "first", second if n_coming else None))  # type: ignore[arg-type]
    last = "second is read" if n_coming else "first is read"
    wait_until(lambda: last in acts)
    writers[0].close()
    loop.close()
    together = ["first begins", "second begins", "first is read", "second is read"]
    assert acts == (together if n_coming else ["first begins", "first is read"])


def test_who_never_comes_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_GATHER_S", 0.0)
    writers, acts, loop = list[Writer](), list[str](), asyncio.new_event_loop()
    writers.append(Writer(loop, lambda: 1))
    writers[0].write(_Asked(writers, acts, "first"))  # type: ignore[arg-type]
    wait_until(lambda: "first is read" in acts)
    writers[0].close()
    loop.close()


def test_who_waits_for_a_place_is_not_on_the_way() -> None:
    async def coming() -> list[int]:
        queue, found = WorkQueue(max_waiting=8, at_once=2), list[int]()
        tickets = [queue.join() for _ in range(3)]
        found.append(queue.n_coming)
        for ticket in tickets[:2]:
            await ticket.__aenter__()
            found.append(queue.n_coming)
        return found

    assert asyncio.run(coming()) == [2, 1, 0]


def test_a_client_that_leaves_keeps_nobody_waiting_for_a_turn(demo_models: Any) -> None:
    """Its replies are ended by the thread that writes them, as soon as the model is free."""
    model: TextModel = demo_models("onnx")
    has_turn, may_end, waited = threading.Event(), threading.Event(), list[bool]()

    def hold() -> None:
        with model.worker.pause():
            has_turn.set()
            waited.append(not may_end.wait(60))

    async def leave() -> None:
        queue = WorkQueue(max_waiting=8, at_once=2)
        writer = _Never()
        replies = model.replies([[1, 2, 3]], max_tokens=8)
        next(replies)
        work = Work(queue.join(), writer, lambda: replies, Loan(Ledger(), "test"), in_pieces=True)  # type: ignore[arg-type]
        await writer.asked.wait()
        work.begin()
        holder = threading.Thread(target=hold)
        holder.start()
        has_turn.wait()
        work.stop()
        may_end.set()
        holder.join()
        assert not work.take_ready(replies.reader)
        assert replies[0].finish_reason == "cancelled"
        work.hand_over(work.take_held(is_over=True))
        await work.task

    asyncio.run(leave())
    assert waited == [False]


class _Never:
    """A writer that does not begin by itself."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def write(self, work: Work) -> None:
        self.asked.set()


def test_a_server_that_has_no_memory_leaves_no_thread(demo_models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model: TextModel = demo_models("onnx")

    def claim(*_: object) -> None:
        raise BudgetExceeded("requests", needed_bytes=1, allowed_bytes=0, hint="")

    monkeypatch.setattr(type(model.ledger), "claim", claim)

    async def serve() -> None:
        before = {*threading.enumerate()}
        with pytest.raises(BudgetExceeded):
            Service(model, ServerSettings(name="demo"))
        assert {*threading.enumerate()} <= before

    asyncio.run(serve())
