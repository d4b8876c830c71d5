"""Laws of replies that are left half read: others are written all the same, and each is what it is alone."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from abandoned import MOST, PATIENCE_S, WHOLE, asked, rows, run, text_model, text_of
from chat_world import chat_model, chat_table

from edge_spec import Reply

# --- closing


def test_a_reply_is_a_context_manager() -> None:
    model = text_model()
    with asked(model, None) as reply:
        next(reply)
    assert reply.finish_reason == "cancelled"
    assert reply.has_ended
    with asked(model) as reply:
        assert reply.read() == WHOLE
    assert reply.finish_reason == "length"


def test_a_reply_is_an_async_context_manager() -> None:
    async def work() -> None:
        model = text_model()
        async with asked(model, None) as reply:
            async for _ in reply:
                break
        assert reply.finish_reason == "cancelled"
        async with asked(model) as reply:
            assert await text_of(reply) == WHOLE
        assert reply.finish_reason == "length"

    run(work())


def test_aclose_ends_a_reply_that_another_task_reads() -> None:
    async def work() -> None:
        model = text_model()
        reply = asked(model, None)
        first = asyncio.create_task(text_of(reply))
        while not reply.token_ids:
            await asyncio.sleep(0.001)
        await reply.aclose()
        assert reply.finish_reason == "cancelled"
        assert await first == reply.text != ""
        assert await text_of(asked(model)) == WHOLE

    run(work())


def test_awaiting_a_reply_gives_its_text() -> None:
    async def work() -> list[str]:
        model = text_model()
        return await asyncio.gather(*(asked(model) for _ in range(3)))

    assert run(work()) == [WHOLE] * 3


# --- a loop that is left


def test_a_loop_that_is_left_ends_a_reply_that_nothing_refers_to() -> None:
    model = text_model()
    for _ in asked(model, None):
        break
    assert asked(model).read() == WHOLE

    async def work() -> str:
        async for _ in asked(model, None):
            break
        return await text_of(asked(model))

    assert run(work()) == WHOLE


@pytest.mark.parametrize("most", MOST)
def test_a_reply_that_is_kept_lets_others_be_written(most: int) -> None:
    async def work() -> None:
        model = text_model(most)
        kept = asked(model)
        async for _ in kept:
            break
        for _ in range(2):
            assert await text_of(asked(model)) == WHOLE
        assert kept.text + await text_of(kept) == WHOLE
        assert await text_of(asked(model)) == WHOLE

    run(work())


@pytest.mark.parametrize("most", MOST)
def test_a_reply_begun_before_the_event_loop_lets_one_inside_it_be_written(most: int) -> None:
    model = text_model(most)
    kept = asked(model)
    next(kept)
    assert run(text_of(asked(model))) == WHOLE
    assert kept.read() == WHOLE
    assert run(text_of(asked(model))) == WHOLE


@pytest.mark.parametrize("most", MOST)
def test_a_sync_reply_in_an_event_loop_does_not_wait_for_an_awaited_one(most: int) -> None:
    async def work() -> None:
        model = text_model(most)
        kept = asked(model)
        async for _ in kept:
            break
        assert asked(model).read() == WHOLE
        await kept.aclose()
        assert asked(model).read() == WHOLE

    run(work())


@pytest.mark.parametrize("most", MOST)
def test_a_reply_left_by_a_task_that_has_ended_lets_others_be_written(most: int) -> None:
    async def work() -> None:
        model = text_model(most)
        kept = asked(model)

        async def begin() -> None:
            async for _ in kept:
                break

        await asyncio.create_task(begin())
        assert await text_of(asked(model)) == WHOLE
        await kept.aclose()
        assert await text_of(asked(model)) == WHOLE

    run(work())


@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize("is_last", [False, True])
def test_replies_inside_the_loop_over_another_one_change_nothing(most: int, is_last: bool) -> None:
    model = text_model(most)
    outer, inner = [], []
    reply = asked(model)
    for n, piece in enumerate(reply):
        outer.append(piece)
        if n % 3 == 0:
            inner.append(asked(model).read())
        if is_last and n % 4 == 0:
            next(asked(model, None))
    assert "".join(outer) == WHOLE
    assert set(inner) == {WHOLE}


# --- waits that end


def test_a_task_waits_for_another_one_that_takes_its_time() -> None:
    async def slowly(reply: Reply) -> str:
        pieces = []
        async for piece in reply:
            pieces.append(piece)
            await asyncio.sleep(0.06)
        return "".join(pieces)

    async def work() -> list[str]:
        model = text_model()
        return await asyncio.gather(*(slowly(asked(model)) for _ in range(3)))

    assert run(work()) == [WHOLE] * 3


def test_a_reply_can_be_read_on_elsewhere() -> None:
    model, read_on = text_model(), threading.Event()
    reply = asked(model)
    next(reply)

    def rest() -> None:
        next(reply)
        read_on.set()
        reply.read()

    thread = threading.Thread(target=rest, daemon=True)
    thread.start()
    assert read_on.wait(PATIENCE_S)
    # It is not this thread that has to read on any more.
    assert asked(model).read() == WHOLE
    thread.join(PATIENCE_S)
    assert reply.text == WHOLE


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("most", MOST)
def test_a_reply_asked_for_by_a_notice_is_written(most: int, awaits: bool) -> None:
    def session_of(told: Any) -> Any:
        model = chat_model(chat_table(1, end=-20.0), n_ctx=40, **rows(most))
        return model, model.chat(seed=1, max_tokens=60, on_notice=told)

    model, session = session_of(lambda sentence: written.append(asked(model, 3).read()))
    written: list[str] = []
    reply = session.send("abcd")
    text = run(text_of(reply)) if awaits else reply.read()
    assert len(written) >= 2 and len(set(written)) == 1 and written[0]
    assert reply.finish_reason == "length"
    assert text == session_of(lambda sentence: None)[1].send("abcd").read()


@pytest.mark.long
def test_conversations_that_are_gone_leave_nothing() -> None:
    model, n_objects = text_model(), list[int]()
    for number in range(120):
        chat = model.chat(seed=number, max_tokens=6)
        for _ in range(2):
            chat.send("ab").read()
        del chat
        if number in (39, 119):
            gc.collect()
            n_objects.append(len(gc.get_objects()))
    # What was learned of costs may have grown by some objects, but nothing has for each conversation.
    assert n_objects[1] - n_objects[0] < 40
    assert model.session_cache_bytes == 0
