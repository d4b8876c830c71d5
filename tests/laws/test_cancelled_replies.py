"""Laws of replies that are cancelled, which keep nobody waiting, and of waits for one that was left half read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from abandoned import PATIENCE_S, WHOLE, asked, run, text_model, text_of

from edge_spec import Reply
from edge_spec.generation.reader import Reader

TOLD = (
    "waiting for another reply of this model, which nobody is reading; "
    "read it to its end, or `cancel()` or `close()` it"
)


def elsewhere(work: Callable[[], str]) -> str:
    """What some work in another thread returns; an endless wait is an error."""
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


def test_a_cancel_wakes_a_thread_that_waits_for_an_unread_reply() -> None:
    model, told = text_model(), threading.Event()
    model.lock.patience_s = 0
    kept = asked(model, None)
    next(kept)
    found: list[str] = []
    waiting = model.generate("ab", seed=1, max_tokens=12, on_notice=lambda sentence: told.set())
    thread = threading.Thread(target=lambda: found.append(waiting.read()), daemon=True)
    thread.start()
    assert told.wait(PATIENCE_S)
    kept.cancel()
    thread.join(PATIENCE_S)
    assert found == [WHOLE]


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


def test_a_reply_whose_time_is_up_gives_its_turn_to_who_waits() -> None:
    model = text_model()
    kept = model.generate("ab", seed=1, timeout=0.2)
    next(kept)
    assert elsewhere(lambda: asked(model).read()) == WHOLE
    assert kept.finish_reason == "timeout"


def test_several_replies_that_are_cancelled_give_their_turn_back() -> None:
    model = text_model()
    kept = model.generate("ab", seed=1, n=3)
    next(kept)
    kept.cancel()
    assert [answer.finish_reason for answer in kept.answers] == ["cancelled"] * 3
    assert elsewhere(lambda: asked(model).read()) == WHOLE


# --- waits that are told


@pytest.mark.parametrize("awaits", [False, True])
def test_who_waits_for_an_unread_reply_is_told_once(awaits: bool, caplog: pytest.LogCaptureFixture) -> None:
    model, told = text_model(), threading.Event()
    model.lock.patience_s = 0
    kept = asked(model)
    waiting = model.generate("ab", seed=1, max_tokens=12, on_notice=lambda sentence: told.set())

    def read_on() -> None:
        assert told.wait(PATIENCE_S)
        kept.read()

    async def both() -> str:
        async def leave() -> None:
            async for _ in kept:
                break

        await asyncio.create_task(leave())
        # Whoever has left could come back.
        kept.reader = Reader.here(awaits=True)
        reading = asyncio.create_task(asyncio.to_thread(read_on))
        text = await asyncio.create_task(text_of(waiting))
        await reading
        return text

    if awaits:
        assert run(both()) == WHOLE
    else:
        next(kept)
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(waiting.read()), daemon=True)
        thread.start()
        read_on()
        thread.join(PATIENCE_S)
        assert found == [WHOLE]
    assert kept.text == WHOLE
    assert waiting.notices == [TOLD]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", TOLD)]


def test_who_waits_for_a_reply_that_is_being_written_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    model, begun, stop = text_model(), threading.Event(), threading.Event()
    model.lock.patience_s = 0.1
    writing = model.generate("ab", seed=1, on_progress=lambda *done: (begun.set(), stop.wait(PATIENCE_S)))
    thread = threading.Thread(target=lambda: next(writing), daemon=True)
    thread.start()
    assert begun.wait(PATIENCE_S)
    waiting = model.generate("ab", seed=1, timeout=1.2)
    assert waiting.read() == ""
    stop.set()
    thread.join(PATIENCE_S)
    assert waiting.notices == []
    assert caplog.records == []


def test_who_waits_is_told_after_two_seconds_by_default() -> None:
    assert text_model().lock.patience_s == 2
