"""Laws of conversations in threads and tasks: answers in progress are protected, and all of them come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_world import chat_model, chat_table
from conversations import converse

from edge_spec import TextModel
from edge_spec.errors import Closed, UnfinishedReply

pytestmark = pytest.mark.long


def test_an_answer_in_progress_is_protected(load: Callable[..., TextModel], tmp_path: Path) -> None:
    session = load(speculation="sequence").chat(seed=1, max_tokens=30)
    reply = session.send("Tell me a story.")
    next(reply)
    for forbidden in (
        lambda: session.send("x"),
        session.retry,
        session.undo,
        session.clear,
        session.continue_answer,
        lambda: session.edit("x"),
        lambda: session.save(tmp_path / "x"),
        lambda: session.set_system("x"),
    ):
        with pytest.raises(UnfinishedReply, match="an answer of this conversation is not finished"):
            forbidden()
    reply.close()
    assert session.messages[-1].finish_reason == "cancelled"
    assert session.messages[-1].content == reply.content
    session.continue_answer().read()
    assert session.messages[-1].is_finished or session.messages[-1].finish_reason == "length"


def test_two_threads_converse_with_one_model(load: Callable[..., TextModel]) -> None:
    model = load(speculation="sequence")
    alone = [converse(model, 3, seed=seed) for seed in (1, 2)]
    found: dict[int, list[Any]] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: converse(model, 3, seed=n + 1)})) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[n] for n in range(2)] == alone


def test_closing_the_model_ends_an_answer_that_another_thread_writes() -> None:
    model = chat_model(chat_table(end=-20.0), n_ctx=1 << 16)
    session = model.chat(seed=1)
    begun = threading.Event()
    thread = threading.Thread(target=lambda: session.send("ab").read(lambda piece: begun.set()))
    thread.start()
    assert begun.wait(20)
    model.close()
    thread.join(20)
    assert not thread.is_alive()
    assert session.messages[-1].finish_reason == "cancelled"
    with pytest.raises(Closed):
        session.send("ab")


def test_a_cancelled_task_cancels_its_answer(load: Callable[..., TextModel]) -> None:
    model = load(speculation="sequence")
    session = model.chat(seed=1, max_tokens=200, ignore_eos=True)

    async def listen(begun: asyncio.Event) -> None:
        async for _ in session.send("Tell me a long story."):
            begun.set()

    async def both() -> str:
        begun = asyncio.Event()
        task = asyncio.create_task(listen(begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert session.messages[-1].finish_reason == "cancelled"
        return "".join([piece async for piece in session.continue_answer(max_tokens=10)])

    assert asyncio.run(both())
    assert session.messages[-1].finish_reason == "length"


def test_more_async_answers_than_threads_in_a_pool_all_come(load: Callable[..., TextModel]) -> None:
    model = load(speculation="off")

    async def say(seed: int) -> str:
        return "".join([piece async for piece in model.chat(seed=seed, max_tokens=5).send("Hello!")])

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(say(seed) for seed in range(40)))

    assert asyncio.run(all_of_them()) == [
        model.chat(seed=seed, max_tokens=5).send("Hello!").read() for seed in range(40)
    ]
