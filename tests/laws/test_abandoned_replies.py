"""Laws of replies that are abandoned half way: the next one begins, or an error says why not. No wait is endless."""

from __future__ import annotations

import asyncio
import threading

import pytest
from abandoned import PATIENCE_S, WHOLE, asked, run, text_model, text_of
from chat_world import chat_model, chat_table

from edge_spec import Reply
from edge_spec.errors import UnfinishedReply

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


def test_a_reply_that_is_kept_makes_the_next_one_of_its_task_an_error() -> None:
    async def work() -> None:
        model = text_model()
        kept = asked(model)
        async for _ in kept:
            break
        for _ in range(2):
            with pytest.raises(UnfinishedReply, match="not finished") as caught:
                await text_of(asked(model))
            assert str(caught.value) == (
                "another reply of this model is not finished; read it to its end, or `cancel()` or `close()` it first"
            )
        # It can be read on, or closed.
        assert kept.text + await text_of(kept) == WHOLE
        assert await text_of(asked(model)) == WHOLE

    run(work())


def test_a_reply_begun_before_the_event_loop_makes_one_inside_it_an_error() -> None:
    model = text_model()
    kept = asked(model)
    next(kept)
    with pytest.raises(UnfinishedReply, match="not finished"):
        run(text_of(asked(model)))
    assert kept.read() == WHOLE
    assert run(text_of(asked(model))) == WHOLE


def test_a_sync_reply_in_an_event_loop_does_not_wait_for_an_awaited_one() -> None:
    async def work() -> None:
        model = text_model()
        kept = asked(model)
        async for _ in kept:
            break
        with pytest.raises(UnfinishedReply, match="not finished"):
            asked(model).read()
        await kept.aclose()
        assert asked(model).read() == WHOLE

    run(work())


@pytest.mark.parametrize("waits_first", [False, True])
def test_a_reply_left_by_a_task_that_has_ended_makes_others_an_error(waits_first: bool) -> None:
    async def work() -> None:
        model = text_model()
        kept, leave = asked(model), asyncio.Event()

        async def begin() -> None:
            async for _ in kept:
                await leave.wait()
                break

        beginning = asyncio.create_task(begin())
        while not kept.text:
            await asyncio.sleep(0.001)
        waiting = asyncio.create_task(text_of(asked(model)))
        if waits_first:
            # The task could still read on.
            await asyncio.sleep(1.2)
            assert not waiting.done()
        leave.set()
        await beginning
        with pytest.raises(UnfinishedReply, match="not finished"):
            await waiting
        await kept.aclose()
        assert await text_of(asked(model)) == WHOLE

    run(work())


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
def test_a_reply_asked_for_by_a_notice_is_an_error(awaits: bool) -> None:
    model = chat_model(chat_table(1, end=-20.0), n_ctx=40)
    caught: list[Exception] = []

    def listen(sentence: str) -> None:
        for use in (lambda: asked(model, 3).read(), lambda: session.save("nowhere")):
            try:
                use()
            except UnfinishedReply as error:
                caught.append(error)

    session = model.chat(seed=1, max_tokens=60, on_notice=listen)
    reply = session.send("abcd")
    if awaits:
        run(text_of(reply))
    else:
        reply.read()
    assert len(caught) >= 2
    assert reply.finish_reason == "length"
