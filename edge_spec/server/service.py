"""The served model, its queue, and its metrics."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from edge_spec.errors import PromptError
from edge_spec.memory import Ledger, Loan
from edge_spec.model import TextModel
from edge_spec.server.answering import Prepared
from edge_spec.server.bodies import Bodies, json_object, parsed_bytes
from edge_spec.server.errors import ApiError, api_error
from edge_spec.server.fields import ChatFields, CompletionFields, parse
from edge_spec.server.jobs import JobMaker
from edge_spec.server.leavable import LeavableCalls
from edge_spec.server.metrics import Metrics
from edge_spec.server.settings import ServerSettings
from edge_spec.server.work_queue import Ticket, WorkQueue
from edge_spec.server.writing import Work, Writer

__all__ = ["Service"]

_LINE = "process", "requests and answers"
_SHORT_BYTES = 1 << 16
_CONSTRAINED = re.compile(rb"tool|schema|grammar|format|\\u")
"""A body without any of these asks for no grammar; an escape may spell any of them."""

_LEAST_BYTES, _MOST_BYTES = 8 << 20, 128 << 20


class Service:
    """A model that answers requests, as many at a time as it can. Belongs to one event loop.

    Attributes:
        model: the served model, which the caller closes.
        settings: how the server behaves.
        bodies: reads what is asked.
        queue: who waits.
        metrics: what is counted.
        started: when it began, in seconds of Unix.
        ledger: of the memory for requests, and for what is kept of answers: half of what the budget leaves at the
            start, since kept texts take the rest, but some MiB in any case, for which there is the budget's reserve.
    """

    def __init__(self, model: TextModel, settings: ServerSettings) -> None:
        self.model = model
        self.settings = settings
        self.bodies = Bodies(settings)
        at_once = settings.at_once or model.most_texts
        self.queue = WorkQueue(settings.max_waiting, at_once)
        self.metrics = Metrics(self.queue, model)
        self.started = int(time.time())
        # Requests that are surely short do not wait for others.
        self._preparing, self._preparing_short = LeavableCalls(), LeavableCalls()
        self._works: set[Work] = set()
        left = model.ledger.left_bytes
        n_bytes = _MOST_BYTES if left is None else min(_MOST_BYTES, max(_LEAST_BYTES, left // 2))
        self._claimed = n_bytes if left is None else min(n_bytes, left)
        self.ledger = Ledger(n_bytes)
        model.ledger.claim(*_LINE, self._claimed)
        model.ledger.gauge(*_LINE, lambda: self.ledger.held_bytes)
        self._jobs = JobMaker(model, settings, self.ledger)
        # Last: it starts a thread, which would leak if memory for the rest were missing.
        self._writer = Writer(asyncio.get_running_loop(), lambda: self.queue.n_coming)

    async def prepare(self, kind: type[ChatFields] | type[CompletionFields], raw: bytes, lent: Loan) -> Prepared:
        """Check a request and make its prompts; claim the memory for it.

        Raises:
            ApiError: what is wrong with it. EdgeSpecError: as ``JobMaker``.
        """

        def work() -> Prepared:
            # That thread parses one request after the other and keeps only its job.
            values_bytes, fields_bytes = parsed_bytes(raw)
            lent.grow(values_bytes)
            body = json_object(raw)
            self._jobs.require_size(body)
            lent.grow(fields_bytes)
            asked = parse(kind, body)
            self.require_name(asked.model)
            try:
                if isinstance(asked, ChatFields):
                    job = self._jobs.chat(asked, body)
                else:
                    assert isinstance(asked, CompletionFields)
                    job = self._jobs.completion(asked, body)
            except PromptError as error:
                raise api_error(error, "messages" if kind is ChatFields else "prompt") from None
            return Prepared(asked, job, self.model, self.settings.name)

        is_short = len(raw) <= _SHORT_BYTES and not _CONSTRAINED.search(raw)
        return await (self._preparing_short if is_short else self._preparing).call(work)

    async def convert(self, make: Callable[[TextModel, dict[str, Any]], Any], raw: bytes, lent: Loan) -> Any:
        """Convert a body with the model's tokenizer."""

        def work() -> Any:
            lent.grow(parsed_bytes(raw)[0])
            return make(self.model, json_object(raw))

        return await self._preparing.call(work)

    def require_name(self, name: str | None) -> None:
        """Raise if a request names another model.

        Raises:
            ApiError: 404.
        """
        if name not in (None, self.settings.name):
            raise ApiError(
                404,
                f"The model {name!r} does not exist; this server has {self.settings.name!r}",
                code="model_not_found",
                param="model",
            )

    def begin(self, ticket: Ticket, prepared: Prepared) -> Work:
        """Queue the work; it begins when its turn comes."""
        kept = Loan(self.ledger, "memory for answers")
        start = partial(prepared.job.replies, self.model)
        work = Work(ticket, self._writer, start, kept, in_pieces=prepared.is_stream)
        self._works.add(work)
        work.task.add_done_callback(lambda _: self._ended(work))
        return work

    def stop(self) -> None:
        """Cancel all active and waiting requests."""
        self.queue.close()
        for work in tuple(self._works):
            work.stop()

    async def close(self) -> None:
        """Stop everything, wait until the model is free, and end the threads."""
        self.stop()
        if self._works:
            await asyncio.wait([work.task for work in self._works])
        self._writer.close()
        await self._preparing.close()
        await self._preparing_short.close()
        self.model.ledger.give_back(*_LINE, self._claimed)

    def _ended(self, work: Work) -> None:
        self._works.discard(work)
        for answer in work.answers:
            self.metrics.wrote(answer.statistics)
