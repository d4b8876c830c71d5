"""The served model, its queue, and its metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

from edge_spec.memory import Ledger, Loan
from edge_spec.model import TextModel
from edge_spec.server.bodies import Bodies, json_object, parsed_bytes
from edge_spec.server.jobs import Job, JobMaker
from edge_spec.server.leavable import LeavableCalls
from edge_spec.server.metrics import Metrics
from edge_spec.server.settings import ServerSettings
from edge_spec.server.work_queue import WorkQueue
from edge_spec.server.writing import Work

__all__ = ["Service"]

T = TypeVar("T")

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
        jobs: makes jobs of requests.
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
        # Requests that are surely short do not wait for others.
        self._preparing, self._preparing_short = LeavableCalls(), LeavableCalls()
        self._works: set[Work] = set()
        left = model.ledger.left_bytes
        n_bytes = _MOST_BYTES if left is None else min(_MOST_BYTES, max(_LEAST_BYTES, left // 2))
        self._claimed = n_bytes if left is None else min(n_bytes, left)
        self.ledger = Ledger(n_bytes)
        model.ledger.claim(*_LINE, self._claimed)
        model.ledger.gauge(*_LINE, lambda: self.ledger.held_bytes)
        self.jobs = JobMaker(model, settings, self.ledger)

    async def prepare(self, make: Callable[[JobMaker, dict[str, Any]], T], raw: bytes, lent: Loan) -> T:
        """Return what ``make`` makes of a body, in a thread; claim the memory for it.

        Raises:
            ApiError, EdgeSpecError: what is wrong with it.
        """

        def work() -> T:
            # That thread parses one request after the other and keeps only its job.
            values_bytes, fields_bytes = parsed_bytes(raw)
            lent.grow(values_bytes)
            body = json_object(raw)
            self.jobs.require_size(body)
            lent.grow(fields_bytes)
            return make(self.jobs, body)

        is_short = len(raw) <= _SHORT_BYTES and not _CONSTRAINED.search(raw)
        return await (self._preparing_short if is_short else self._preparing).call(work)

    def begin(self, job: Job) -> Work:
        """Write the replies to a request that has joined the queue, when its turn comes."""
        work = Work(job, self.model, self.queue, Loan(self.ledger, "memory for answers"))
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
        await self._preparing.close()
        await self._preparing_short.close()
        self.model.ledger.give_back(*_LINE, self._claimed)

    def _ended(self, work: Work) -> None:
        self._works.discard(work)
        for answer in work.answers:
            self.metrics.wrote(answer.statistics)
