"""Turn written replies into responses, whole or in chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from io import StringIO
from typing import Any

from edge_spec.errors import Cancelled
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.reply import Reply
from edge_spec.generation.tools.answers import AnswerParser, MergedMessage
from edge_spec.model import TextModel
from edge_spec.server.fields import ChatFields, ReplyFields
from edge_spec.server.formats import (
    Told,
    chat_logprobs,
    completion_logprobs,
    ending,
    envelope,
    json_of,
    token_events,
    usage,
)
from edge_spec.server.jobs import Job
from edge_spec.server.writing import Work

__all__ = ["Prepared", "chunks", "whole"]


_CHARACTER_BYTES = 8
"""Bytes that are kept of a text for each of its own, while it grows and when it is sent."""


class CompletionChoice:
    """One continued text.

    Args:
        number: which of the replies to the request it is.
    """

    kind, kind_of_chunk, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, job: Job, model: TextModel, number: int) -> None:
        self._model = model
        self._number = number
        self._job = job
        self._n_chars = 0
        self._text = StringIO()
        self._told = Told()

    def begun(self) -> list[dict[str, Any]]:
        """Choices of the first chunk."""
        return []

    def chunk(self, batch: list[TokenEvent]) -> list[dict[str, Any]]:
        """Choices of a chunk for some tokens."""
        text = "".join(event.text for event in batch)
        choice = self._choice(text, batch, None)
        self._n_chars += len(text)
        return [choice]

    def ended(self, answer: Reply) -> list[dict[str, Any]]:
        """Choices of the last chunk."""
        return [self._choice("", [], answer)]

    def keep(self, batch: list[TokenEvent]) -> int:
        """Store tokens for the whole response; return how many bytes that takes."""
        text = "".join(event.text for event in batch)
        self._text.write(text)
        n_bytes = self._told.add(self._choice("", batch, None)) if self._job.tells_tokens else 0
        self._n_chars += len(text)
        return n_bytes + _CHARACTER_BYTES * len(text)

    def whole(self, answer: Reply) -> Iterator[bytes | bytearray]:
        """Yield the choice of the whole response in JSON."""
        return self._told.within(self._choice(self._text.getvalue(), [], answer))

    def _choice(self, text: str, events: list[TokenEvent], answer: Reply | None) -> dict[str, Any]:
        logprobs = None
        if self._job.asked.get("logprobs") is not None:
            logprobs = completion_logprobs(
                _of_text(events, self._model), self._model.prompts.spelling, offset=self._n_chars
            )
        choice = {"index": self._number, "text": text, "logprobs": logprobs, **ending(answer)}
        return choice | _events(events, self._job, self._model)


class ChatChoice:
    """One answer; see ``CompletionChoice``."""

    kind, kind_of_chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, job: Job, model: TextModel, number: int) -> None:
        self._job = job
        self._model = model
        self._number = number
        self._parser: AnswerParser = job.parser(model, number)
        self._message = MergedMessage()
        self._told = Told()

    def begun(self) -> list[dict[str, Any]]:
        return [self._choice({"delta": {"role": "assistant", "content": ""}}, [], None)]

    def chunk(self, batch: list[TokenEvent]) -> list[dict[str, Any]]:
        deltas = self._parser.push("".join(event.text for event in batch))
        if not deltas and self._job.tells_tokens:
            deltas = [{}]
        return [self._choice({"delta": delta}, batch if place == 0 else [], None) for place, delta in enumerate(deltas)]

    def ended(self, answer: Reply) -> list[dict[str, Any]]:
        choices = [self._choice({"delta": delta}, [], None) for delta in self._finish(answer)]
        return [*choices, self._choice({"delta": {}}, [], answer)]

    def keep(self, batch: list[TokenEvent]) -> int:
        text = "".join(event.text for event in batch)
        for delta in self._parser.push(text):
            self._message.add(delta)
        n_bytes = self._told.add(self._choice({}, batch, None)) if self._job.tells_tokens else 0
        return n_bytes + _CHARACTER_BYTES * len(text)

    def whole(self, answer: Reply) -> Iterator[bytes | bytearray]:
        for delta in self._finish(answer):
            self._message.add(delta)
        return self._told.within(self._choice({"message": self._message.message()}, [], answer))

    def _finish(self, answer: Reply) -> list[dict[str, Any]]:
        return self._parser.finish(is_cut=answer.finish_reason not in ("eos", "stop"))

    def _choice(self, content: dict[str, Any], events: list[TokenEvent], answer: Reply | None) -> dict[str, Any]:
        logprobs = None
        if self._job.asked.get("logprobs") is not None:
            logprobs = chat_logprobs(_of_text(events, self._model), self._model.prompts.spelling)
        ended = ending(answer, has_calls=self._parser.has_calls)
        return {"index": self._number, **content, "logprobs": logprobs, **ended} | _events(
            events, self._job, self._model
        )


def _of_text(events: list[TokenEvent], model: TextModel) -> list[TokenEvent]:
    """Return the events of tokens with text: OpenAI's responses omit the token that ends an answer."""
    return [event for event in events if event.id is None or not model.prompts.ends(event.id)]


def _events(events: list[TokenEvent], job: Job, model: TextModel) -> dict[str, Any]:
    """Return the events of single tokens, if they were requested."""
    return {"token_events": token_events(events, model.prompts.spelling)} if job.token_events else {}


Choice = ChatChoice | CompletionChoice


class Prepared:
    """A request that the model can answer.

    Attributes:
        is_stream, includes_usage: how the response is to be given.
        job: what the model has to write.
        model: what writes it.
        choices: what becomes of the replies.
        envelope: what the response begins with.
    """

    def __init__(self, asked: ReplyFields, job: Job, model: TextModel, name: str) -> None:
        self.is_stream = asked.stream
        self.includes_usage = asked.stream_options.include_usage
        self.job = job
        kind = ChatChoice if isinstance(asked, ChatFields) else CompletionChoice
        self.choices: list[Choice] = [kind(job, model, number) for number in range(len(job.prompts) * job.n)]
        self.model = model
        self.envelope = envelope(kind.kind_of_chunk if asked.stream else kind.kind, kind.prefix, name, model)


async def whole(work: Work, prepared: Prepared) -> list[bytes | bytearray]:
    """Return the whole response in JSON, in pieces."""
    async for number, batch in work:
        work.kept.grow(prepared.choices[number].keep(batch))
    usage, own = _usage(work, prepared.job), _own_fields(work, prepared)
    pieces: list[bytes | bytearray] = [json_of({**prepared.envelope, "usage": usage, "edge_spec": own})[:-1]]
    for number, (choice, answer) in enumerate(zip(prepared.choices, work.answers, strict=True)):
        pieces.append(b"," if number else b',"choices":[')
        pieces += choice.whole(_ended(answer))
    return [*pieces, b"]}"]


async def chunks(work: Work, prepared: Prepared) -> AsyncIterator[dict[str, Any]]:
    """Yield the response in chunks; several replies take turns."""
    common, include_usage = prepared.envelope, prepared.includes_usage
    # As OpenAI does: with a usage at the end, the other chunks have a usage of null.
    more: dict[str, Any] = {"usage": None} if include_usage else {}
    begun: set[int] = set()
    async for number, batch in work:
        choice = prepared.choices[number]
        found = [] if number in begun else choice.begun()
        begun.add(number)
        found += choice.chunk(batch) if batch else choice.ended(_ended(work.answers[number]))
        for each in found:
            yield {**common, "choices": [each], **more}
    if include_usage:
        usage, own = _usage(work, prepared.job), _own_fields(work, prepared)
        yield {**common, "choices": [], "usage": usage, "edge_spec": own}


def _ended(answer: Reply) -> Reply:
    if answer.error is not None:
        raise answer.error
    if answer.finish_reason == "cancelled":
        raise Cancelled
    return answer


def _usage(work: Work, job: Job) -> dict[str, Any]:
    return usage(work.answers, sum(map(len, job.prompts)), job.n)


def _own_fields(work: Work, prepared: Prepared) -> dict[str, Any]:
    """Return the fields that OpenAI's form lacks: the seed that was drawn, times, how much faster the only answer was
    for its drafts, as far as is known, and what the user should know.

    Plain rounds are measured without a grammar and without log probabilities, whose time they would take as well: the
    times of such an answer are not compared with them.
    """
    asked = prepared.job.asked
    is_like_plain = len(work.answers) == 1 and asked.get("grammar") is None and asked.get("logprobs") is None
    done = [answer.statistics for answer in work.answers]
    return {
        "seed": work.answers[0].settings.seed,
        "identity": [answer.identity for answer in work.answers],
        "timings": [each.timings() for each in done],
        "speed_up": prepared.model.speed_up(done[0]) if is_like_plain else None,
        "notices": [*prepared.job.notices, *(work.replies.notices if work.replies is not None else ())],
    }
