"""Laws of reading a reply: every way gives the same text, tells the same, and ends in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from chat_world import chat_model, chat_table
from clock import Clock
from letters import LetterTokenizer
from watched_table import watch

from edge_spec import TextModel
from edge_spec.errors import AlreadyRead, SettingsError
from edge_spec.generation.context import GuardedReply, MemoryGuard
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.target import Target
from edge_spec.testing import TableModel, random_table

TABLE = random_table(5, order=1, seed=2, scale=1.0)
PROMPT = "abcdeabcdeabcdeabcde"


class Chunked(TableModel):
    """Reads prompts seven tokens at a time."""

    def __init__(self) -> None:
        super().__init__(TABLE, n_ctx=400)
        self.chunks: list[int] = []
        self.pool.capabilities = replace(self.pool.capabilities, prefill_chunk=7)
        watch(self, self._count)

    def _count(self, parts: Any, is_decode: bool) -> None:
        if not is_decode:
            self.chunks += [len(part.tokens) for part in parts]


class Slow(MemoryGuard):
    """Rounds take some time, by the clock of replies."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.seconds = 0.005

    def before_round(self, replies: Sequence[GuardedReply]) -> bool:
        self.clock.now += self.seconds
        return True


class Scarce(MemoryGuard):
    """Says something before a reply."""

    def before_reply(self, reply: GuardedReply) -> bool:
        reply.notice("memory is scarce: the numerics profile changed")
        return True


def text_model(target: TableModel | None = None, guard: MemoryGuard | None = None) -> TextModel:
    speculator = Slot(target or TableModel(TABLE, n_ctx=400), ModelDrafter(TableModel(TABLE, n_ctx=400)))
    return TextModel(Target(speculator), lambda: 3, LetterTokenizer(), mode="sequence", guard=guard)


def written(**values: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "seed": 4, "max_tokens": 60, **values}


def test_events_are_the_same_for_threads_and_event_loops() -> None:
    model = text_model()
    plain = list(model.generate(**written(logprobs=2)).events())

    async def awaited() -> list[Any]:
        events = model.generate(**written(logprobs=2)).events()
        found = [event async for event in events]
        # After its end there is nothing more, as with every iterator.
        assert await anext(events, None) is None
        return found

    assert asyncio.run(awaited()) == plain
    assert "".join(event.text for event in plain) == model.generate(**written()).read()


def test_several_replies_can_be_awaited() -> None:
    model = text_model()
    expected = model.generate(**written(n=3)).read()

    async def awaited() -> tuple[list[str], list[str]]:
        async with model.generate(**written(n=3)) as replies:
            texts = ["", "", ""]
            async for index, piece in replies:
                texts[index] += piece
        return texts, await model.generate(**written(n=3))

    assert asyncio.run(awaited()) == (expected, expected)


def test_reading_a_prompt_is_told_chunk_by_chunk_and_changes_nothing() -> None:
    target, told = Chunked(), []
    model = text_model(target)
    reply = model.generate(**written(on_progress=lambda *now: told.append(now)))
    assert reply.read() == text_model().generate(**written()).read()
    n = len(reply.prompt) - 1
    assert told == [("reading", done, n) for done in range(0, n, 7)] + [("reading", n, n)]
    assert target.chunks == [7] * (n // 7) + [n % 7] * (n % 7 > 0)
    assert reply.prompt_progress == (n, n)


def test_an_error_of_who_is_told_ends_the_reply_and_leaves_the_model_usable() -> None:
    model = text_model(Chunked())

    def fail(stage: str, done: int, total: int) -> None:
        raise ValueError("the window is gone")

    reply = model.generate(**written(on_progress=fail))
    with pytest.raises(ValueError, match="the window is gone"):
        reply.read()
    assert reply.finish_reason == "error"
    assert model.generate(**written()).read() == text_model().generate(**written()).read()


@pytest.mark.parametrize("n", [None, 2])
def test_notices_are_told_as_they_come(n: int | None) -> None:
    told: list[str] = []
    replies = text_model(guard=Scarce()).generate(**written(n=n, on_notice=told.append))
    replies.read()
    assert told == replies.notices and set(told) == {"memory is scarce: the numerics profile changed"}


@pytest.mark.parametrize("n", [None, 2])
def test_time_is_up_between_rounds_and_what_was_written_stays(n: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(Clock.of_replies(monkeypatch))
    model = text_model(guard=slow)
    whole = text_model().generate(**written(max_tokens=380, n=n)).read()
    replies = model.generate(**written(max_tokens=380, n=n, timeout=0.1))
    found = replies.read()
    reasons = [replies.finish_reason] if n is None else [answer.finish_reason for answer in replies.answers]
    assert set(reasons) == {"timeout"}
    for text, full in zip([found] if n is None else found, [whole] if n is None else whole, strict=True):
        assert full.startswith(text) and "" != text != full
    slow.seconds = 0
    assert model.generate(**written(timeout=60)).read() == text_model().generate(**written()).read()


@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan")])
def test_a_time_limit_is_a_positive_number(value: Any) -> None:
    with pytest.raises(SettingsError, match="timeout"):
        text_model().generate(**written(timeout=value))


def test_a_conversation_tells_progress_and_keeps_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock.of_replies(monkeypatch, tick=0.001)
    told: list[Any] = []
    table = chat_table(end=-1e9)
    model = chat_model(table, n_ctx=8000)
    conversation = model.chat(seed=1, timeout=0.05, on_progress=lambda *now: told.append(now))
    reply = conversation.send("abcdabcd", max_tokens=7000)
    reply.read()
    assert reply.finish_reason == "timeout"
    assert told and {stage for stage, _, _ in told} == {"reading"}
    assert conversation.to_json()["options"]["timeout"] == 0.05


def test_a_reply_that_was_read_gives_its_pieces_again() -> None:
    model = text_model()
    reply = model.generate(**written())
    pieces = [next(reply), *reply]
    # A loop that was left has gone on in the next one.
    assert "".join(pieces) == reply.text and reply.finish_reason
    told: list[str] = []
    assert [*reply] == pieces and reply.read(told.append) == reply.text and told == pieces
    assert next(reply, None) is None

    async def awaited() -> list[str]:
        return [piece async for piece in reply]

    assert asyncio.run(awaited()) == pieces
    assert [*reply.parts()] == [(False, text) for text in pieces]
    several = model.generate(**written(n=3))
    read = [*several]
    assert sorted(several) != [] and ["".join(text for n, text in several if n == k) for k in range(3)] == several.texts
    assert sorted(map(str, read)) == sorted(map(str, several))
    # What ended before it was begun has no pieces.
    reply = model.generate(**written())
    reply.cancel()
    assert [*reply] == [*reply] == [*reply.events()] == []


def test_events_are_told_once_and_say_so() -> None:
    model = text_model()
    whole = [event.id for event in model.generate(**written()).events()]
    assert len(whole) == 60
    # However often their loop is left, none is lost.
    for n in (1, 4, 29):
        reply, seen = model.generate(**written()), list[int | None]()
        while len(seen) < len(whole):
            seen += [event.id for event in islice(reply.events(), n)]
        assert seen == whole
    read = model.generate(**written())
    read.read()
    listed = model.generate(**written())
    assert len([*listed.events()]) == 60
    for each in (read, listed):
        with pytest.raises(AlreadyRead, match=r"its words are in `reply\.text`"):
            each.events()
        with pytest.raises(AlreadyRead):
            next(each.event_batches())
