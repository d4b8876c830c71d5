"""Laws of the thread that computes for a model: it works while somebody waits, and goes with the model."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import pytest
from abandoned import WHOLE, asked, run, text_model, text_of

from edge_spec import Reply, TextModel
from edge_spec.errors import Closed, UnfinishedReply
from edge_spec.generation import scheduler
from edge_spec.testing.table_model import TablePool


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "edge-spec"}


def wait_until(said: Any) -> None:
    end = monotonic() + 60
    while not said():
        assert monotonic() < end
        sleep(0.01)


def test_nothing_is_computed_while_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    decodes: list[int] = []
    decode = TablePool.decode
    monkeypatch.setattr(TablePool, "decode", lambda pool, trees: (decodes.append(len(trees)), decode(pool, trees))[1])
    with text_model() as model:
        replies = [asked(model) for _ in range(3)]
        assert not decodes
        for _ in range(3):
            for reply in replies:
                next(reply)
        # Between two waits the worker has nothing to do, however long that takes.
        n_decodes = len(decodes)
        sleep(0.3)
        assert len(decodes) == n_decodes
        assert [reply.read() for reply in replies] == [WHOLE] * 3


def test_one_thread_computes_for_all_readers() -> None:
    before = workers()
    with text_model() as model:

        async def several() -> list[str]:
            texts = await asyncio.gather(*(text_of(asked(model)) for _ in range(5)))
            assert len(workers() - before) == 1
            return texts

        assert asked(model).read() == WHOLE
        assert len(workers() - before) == 1
        assert run(several()) == [WHOLE] * 5
    wait_until(lambda: workers() <= before)


def test_a_model_that_nobody_refers_to_goes_with_its_thread() -> None:
    before, model = workers(), text_model()
    reply = asked(model)
    next(reply)
    gone = weakref.ref(model)
    del model, reply
    gc.collect()
    assert gone() is None
    wait_until(lambda: workers() <= before)


def test_who_computes_cannot_wait_for_another_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[type[BaseException]] = []
    decode = TablePool.decode

    def reading(pool: TablePool, trees: Any) -> Any:
        if not told:
            for wait in (other.read, model.check_memory, other.close):
                try:
                    wait()
                    told.append(type(None))
                except UnfinishedReply as error:
                    told.append(type(error))
        return decode(pool, trees)

    with text_model() as model:
        other = asked(model)
        monkeypatch.setattr(TablePool, "decode", reading)
        assert asked(model).read() == WHOLE
        assert told[0] is UnfinishedReply
        # What cannot be done in the middle of a step is done after it.
        assert other.finish_reason == "cancelled"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_process_that_was_forked_is_told_that_it_has_no_model() -> None:
    with text_model() as model:
        kept = asked(model)
        next(kept)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                asked(model).read()
            except Closed:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert kept.read() == WHOLE


def test_readers_that_wait_are_told_when_the_model_is_closed() -> None:
    model = text_model()
    ended: list[str | None] = []

    def read(reply: Reply) -> None:
        for _ in reply:
            pass
        ended.append(reply.finish_reason)

    replies = [model.generate("ab", seed=1, max_tokens=100_000, ignore_eos=True) for _ in range(4)]
    threads = [threading.Thread(target=read, args=(reply,), daemon=True) for reply in replies]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(reply.token_ids for reply in replies))
    model.close()
    for thread in threads:
        thread.join(60)
    assert ended == ["cancelled"] * 4


def test_whoever_closes_a_model_finds_it_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while another thread is closing it."""
    closing, go_on, done = threading.Event(), threading.Event(), list[str]()
    monkeypatch.setattr(TablePool, "close", lambda pool: (closing.set(), go_on.wait(60), done.append("closed")))
    model = text_model()
    assert asked(model).read() == WHOLE

    def close() -> None:
        model.close()
        done.append("returned")

    threads = [threading.Thread(target=close, daemon=True) for _ in range(2)]
    threads[0].start()
    assert closing.wait(60)
    threads[1].start()
    threads[1].join(0.2)
    assert not done
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert done[0] == "closed" and done.count("returned") == 2


class Interrupt(BaseException):
    """Strikes a thread as Ctrl-C strikes the main one."""


def strike(thread: threading.Thread) -> None:
    import ctypes

    assert sys.implementation.name == "cpython"
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupt))


def test_a_wait_that_is_interrupted_leaves_the_reply_where_it_was() -> None:
    with text_model() as model:
        reply = model.generate("ab", seed=1, max_tokens=100_000, ignore_eos=True)
        found: list[str] = []

        def read() -> None:
            try:
                for piece in reply:
                    found.append(piece)
            except Interrupt:
                found.append("interrupted")

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        wait_until(lambda: len(found) > 20)
        strike(thread)
        thread.join(60)
        assert found[-1] == "interrupted"
        assert reply.finish_reason == "cancelled"
        assert "".join(found[:-1]) in reply.text + reply.sequence.held
        assert isinstance(model, TextModel) and asked(model).read() == WHOLE


@pytest.mark.parametrize("way", ["Ctrl-C", "cancelled", "timeout", "cancelled task"])
def test_what_was_written_of_a_reply_that_is_read_at_once_is_kept(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader is not woken by every token, and nothing is lost if it is never woken again."""
    # Its context is not full before it is interrupted.
    decode = TablePool.decode
    monkeypatch.setattr(TablePool, "decode", lambda pool, trees: (sleep(0.001), decode(pool, trees))[1])
    with text_model() as model:
        timeout = 0.5 if way == "timeout" else None
        reply = model.generate("ab", seed=1, max_tokens=100_000, ignore_eos=True, timeout=timeout)

        def read() -> None:
            with suppress(Interrupt):
                reply.read()

        async def cancelled() -> None:
            task = asyncio.create_task(reply.aread())
            while len(reply.token_ids) <= 20:
                await asyncio.sleep(0.01)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        if way == "cancelled task":
            run(cancelled())
        else:
            thread = threading.Thread(target=read, daemon=True)
            thread.start()
            wait_until(lambda: len(reply.token_ids) > 20)
            if way == "Ctrl-C":
                strike(thread)
            elif way == "cancelled":
                reply.cancel()
            thread.join(60)
        assert reply.finish_reason == ("timeout" if way == "timeout" else "cancelled")
        n = len(reply.token_ids)
        assert n == model.rows["text"]
        assert reply.text == reply.content == model.generate("ab", seed=1, max_tokens=n, ignore_eos=True).read()


def test_a_step_that_takes_long_costs_no_reader_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two readers of an engine that holds one text would take it from each other for ever."""
    monkeypatch.setattr(scheduler, "_PATIENCE_S", 0.05)
    n_read = list[int]()
    prefill = TablePool.prefill

    def slow(pool: TablePool, pieces: Any) -> None:
        n_read.append(sum(len(tokens) for _, tokens in pieces))
        sleep(0.1)
        prefill(pool, pieces)

    monkeypatch.setattr(TablePool, "prefill", slow)
    with text_model(1) as model:
        # What gives way is read again.
        model.prefix_cache.limit_bytes = 0
        texts = list[str]()
        prompts = ["ab" * 30, "ba" * 30]
        replies = [
            model.generate(prompt, seed=1, max_tokens=5, on_progress=lambda *told: sleep(0.01)) for prompt in prompts
        ]
        threads = [threading.Thread(target=lambda reply=reply: texts.append(reply.read())) for reply in replies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(texts) == 2
        assert sum(n_read) <= sum(len(reply.prompt) for reply in replies)
