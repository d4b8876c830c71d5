"""Laws of replies that are cancelled: they keep nobody waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from abandoned import PATIENCE_S, WHOLE, asked, run, text_model, text_of
from clock import Clock

from edge_spec import Reply


def elsewhere(work: Callable[[], str]) -> str:
    """Return what some work in another thread returns; an endless wait is an error."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return found[0]


# --- replies that are cancelled


@pytest.mark.parametrize("awaits", [False, True])
def test_a_cancelled_reply_that_is_not_read_gives_its_turn_back(awaits: bool) -> None:
    model = text_model()
    kept = asked(model, None)

    async def left() -> None:
        async for _ in kept:
            break
        kept.cancel()
        assert kept.has_ended
        assert await asyncio.gather(*(text_of(asked(model)) for _ in range(2))) == [WHOLE] * 2

    if awaits:
        run(left())
    else:
        next(kept)
        kept.cancel()
        assert kept.has_ended
    assert kept.finish_reason == "cancelled"
    assert asked(model).read() == WHOLE
    assert elsewhere(lambda: asked(model).read()) == WHOLE


@pytest.mark.long
def test_a_reply_cancelled_while_it_is_read_ends_though_nobody_reads_on() -> None:
    model = text_model()
    for _ in range(50):
        reply, is_cancelled = asked(model, None), threading.Event()

        def read(reply: Reply = reply, is_cancelled: threading.Event = is_cancelled) -> str:
            for _ in reply:
                if is_cancelled.is_set():
                    break
            return reply.text

        def cancel(reply: Reply = reply, is_cancelled: threading.Event = is_cancelled) -> None:
            while not reply.text:
                pass
            reply.cancel()
            is_cancelled.set()

        cancelling = threading.Thread(target=cancel)
        cancelling.start()
        assert elsewhere(read)
        cancelling.join()
        assert reply.has_ended
    assert asked(model).read() == WHOLE


def test_a_reply_whose_time_is_up_ends_though_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock.of_replies(monkeypatch)
    model = text_model()
    kept = model.generate("ab", seed=1, timeout=0.2)
    next(kept)
    clock.now += 0.3
    assert elsewhere(lambda: asked(model).read()) == WHOLE
    assert kept.finish_reason == "timeout"


def test_several_replies_that_are_cancelled_give_their_turn_back() -> None:
    model = text_model()
    kept = model.generate("ab", seed=1, n=3)
    next(kept)
    kept.cancel()
    assert [answer.finish_reason for answer in kept.answers] == ["cancelled"] * 3
    assert elsewhere(lambda: asked(model).read()) == WHOLE


def test_a_cancelled_task_keeps_no_event_loop_waiting_for_a_turn() -> None:
    model = text_model()
    kept, has_turn, may_end = asked(model, None), threading.Event(), threading.Event()
    kept_waiting = list[bool]()

    def hold() -> None:
        with model.worker.pause():
            has_turn.set()
            kept_waiting.append(not may_end.wait(PATIENCE_S))

    async def left() -> None:
        reading = asyncio.ensure_future(text_of(kept))
        while not kept.text:
            await asyncio.sleep(0)
        holder = threading.Thread(target=hold)
        holder.start()
        # The worker is paused: the task waits for a step that does not come.
        has_turn.wait()
        reading.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(reading, return_exceptions=True)
        holder.join()

    run(left())
    assert kept_waiting == [False]
    assert kept.finish_reason == "cancelled" and kept.has_ended
