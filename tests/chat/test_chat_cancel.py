"""Laws of stopping: at any moment, from any thread, and nothing is torn apart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_world import chat_model, chat_table

import edge_spec
from edge_spec import Reply, TextModel
from edge_spec.errors import Cancelled
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.testing import TableModel

LONG = "Tell me a long story about a dog and a cat and a house."


@pytest.fixture(scope="module", params=["llama", "onnx"])
def load(request: pytest.FixtureRequest, probe_cache: Path) -> Iterator[Callable[[str], TextModel]]:
    opened: dict[str, TextModel] = {}

    def of(mode: str) -> TextModel:
        if mode not in opened:
            opened[mode] = edge_spec.load(
                "demo", n_ctx=256, n_threads=1, engine=request.param, speculation=mode, cache_dir=probe_cache
            )
        return opened[mode]

    yield of
    for model in opened.values():
        model.close()


@pytest.mark.long
def test_a_cancel_in_a_shift_leaves_the_words_of_a_retry_alone(
    load: Callable[[str], TextModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load("off")
    target: Any = model.followed["target"].model
    shift, shifts = target.shift, []

    def converse(*, cancel_first: bool) -> tuple[str, ...]:
        shifts.clear()

        def cancelled_shift(first: int, last: int) -> None:
            shifts.append(first)
            if cancel_first and len(shifts) == 1:
                target.pool.cancel()
                try:
                    # llama.cpp decodes here; what does not is cancelled afterwards.
                    shift(first, last)
                finally:
                    target.pool.resume()
                raise Cancelled
            shift(first, last)

        monkeypatch.setattr(target, "shift", cancelled_shift)
        notices: list[str] = []
        session = model.chat(seed=5, max_tokens=60, ignore_eos=True, on_notice=notices.append)
        answers = []
        for _ in range(5):
            reply = session.send(LONG)
            reply.read()
            while reply.finish_reason == "cancelled":
                reply = session.continue_answer(max_tokens=60 - len(reply.token_ids))
                reply.read()
            answers.append(session.messages[-1].content)
        assert any("context is full" in notice for notice in notices)
        monkeypatch.setattr(target, "shift", shift)
        return tuple(answers)

    assert len(converse(cancel_first=True)) == len(converse(cancel_first=False)) == 5
    # After a cancel the text is read again, so the bits may differ, but never what the model has been told.
    assert shifts


@pytest.mark.long
@pytest.mark.parametrize("mode", ["off", "tree", "hierarchy", "sequence"])
def test_after_a_cancel_between_two_pieces_a_conversation_can_be_saved(
    load: Callable[[str], TextModel], mode: str, tmp_path: Path
) -> None:
    session = load(mode).chat(seed=1, max_tokens=60, ignore_eos=True)
    for n_pieces in range(1, 9):
        reply = session.send(LONG)
        for _ in range(n_pieces):
            next(reply)
        reply.cancel()
        reply.close()
        session.save(tmp_path / "talk")
        assert session.messages[-1].finish_reason == "cancelled"
        session.undo()


def read_in_a_thread(reply: Reply) -> None:
    """Read a piece of a reply in another thread, which would have to read it on."""
    thread = threading.Thread(target=lambda: next(reply))
    thread.start()
    thread.join(20)
    assert reply.text


def test_who_waits_for_a_turn_can_be_cancelled() -> None:
    model = chat_model(chat_table(end=-20.0), n_ctx=1 << 16, widths=())
    first = model.chat(seed=1).send("ab")
    read_in_a_thread(first)
    waiting = model.chat(seed=2).send("ab")
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(waiting.read()))
    thread.start()
    waiting.cancel()
    thread.join(20)
    assert not thread.is_alive()
    assert (found, waiting.finish_reason) == ([""], "cancelled")
    read_in_a_thread(first)

    async def impatient() -> None:
        pieces = model.chat(seed=3).send("ab").__aiter__()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pieces.__anext__(), 0.1)

    asyncio.run(impatient())
    first.close()
    assert model.chat(seed=3, max_tokens=5).send("ab").read()


def test_a_closed_model_wakes_those_that_wait_for_it() -> None:
    model = chat_model(chat_table(end=-20.0), n_ctx=1 << 16, widths=())
    first = model.chat(seed=1).send("ab")
    next(first)
    waiting = model.chat(seed=2).send("ab")
    found: list[Any] = []

    def wait() -> None:
        try:
            found.append(waiting.read())
        except edge_spec.EdgeSpecError as error:
            found.append(type(error).__name__)

    thread = threading.Thread(target=wait)
    thread.start()
    model.close()
    thread.join(20)
    assert not thread.is_alive()
    assert found in (["Closed"], [""])


def test_a_listener_that_closes_ends_the_answer_and_nothing_else() -> None:
    model = chat_model(chat_table(1, end=-20.0), ModelDrafter(TableModel(chat_table(1))), n_ctx=40)
    replies: list[Any] = []
    session = model.chat(seed=1, on_notice=lambda sentence: replies[-1].close())
    replies.append(session.send("abcd"))
    replies[-1].read()
    assert session.messages[-1].finish_reason == "cancelled"
    assert model.chat(seed=3, max_tokens=5).send("ab").read()


def test_a_conversation_that_cannot_be_suspended_takes_no_turn_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chat_model(chat_table(end=-3.0), n_ctx=400)
    first, second = (model.chat(seed=seed, max_tokens=8) for seed in (1, 2))
    first.send("ab").read()

    def full() -> Any:
        raise MemoryError

    monkeypatch.setattr(model.followed["target"].model, "save", full)
    assert second.send("ab").read()
    assert first.send("ab").read()
