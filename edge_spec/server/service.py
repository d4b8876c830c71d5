"""The served models, their queue, and their metrics."""

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
from edge_spec.server.loader import Loader
from edge_spec.server.metrics import Metrics
from edge_spec.server.models import Lease, Models
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

_AT_ONCE = 16
"""Several models may answer more requests at a time, each as many as it can; so many count as none that waits."""


class Service:
    """Models that answer requests, as many at a time as they can. Belongs to one event loop.

    Args:
        source: the only model, which the caller closes, or what opens the models.
        settings: how the server behaves.

    Attributes:
        settings: the same.
        models: lends one to each request.
        bodies: reads what is asked.
        queue: who waits.
        metrics: what is counted.
        ledger: of the memory for requests, and for what is kept of answers. Beside one model: half of what the budget
            leaves at the start, since kept texts take the rest, but some MiB in any case, for which there is the
            budget's reserve.
    """

    def __init__(self, source: TextModel | Loader, settings: ServerSettings) -> None:
        self.settings = settings
        self.bodies = Bodies(settings)
        at_once = source.most_texts if isinstance(source, TextModel) else _AT_ONCE
        self.queue = WorkQueue(settings.max_waiting, settings.at_once or at_once)
        # Requests that are surely short do not wait for others.
        self._preparing, self._preparing_short = LeavableCalls(), LeavableCalls()
        self._works: set[Work] = set()
        self._of_all = source.ledger
        left = source.ledger.left_bytes
        n_bytes = _MOST_BYTES if left is None else min(_MOST_BYTES, max(_LEAST_BYTES, left // 2))
        if isinstance(source, Loader):
            n_bytes = source.requests_bytes
        self._claimed = n_bytes if left is None else min(n_bytes, left)
        self.ledger = Ledger(n_bytes)
        self._of_all.claim(*_LINE, self._claimed)
        self._of_all.gauge(*_LINE, lambda: self.ledger.held_bytes)
        self.models = Models(source, settings, self.ledger)
        self.metrics = Metrics(self.queue, self.models, self._of_all)

    async def parsed(self, raw: bytes, lent: Loan) -> dict[str, Any]:
        """Return the fields of a body, read in a thread; claim the memory for it.

        Raises:
            ApiError: it is no JSON object, or too large.
        """

        def work() -> dict[str, Any]:
            # That thread parses one request after the other.
            lent.grow(parsed_bytes(raw)[0])
            return json_object(raw)

        return await self._calls(raw).call(work)

    async def prepare(
        self, make: Callable[[JobMaker, dict[str, Any]], T], lease: Lease, body: dict[str, Any], raw: bytes, lent: Loan
    ) -> T:
        """Return what ``make`` makes of the fields of a body, in a thread; claim the memory for it.

        Raises:
            ApiError, EdgeSpecError: what is wrong with it.
        """

        jobs = lease.jobs

        def work() -> T:
            jobs.require_size(body)
            # That thread keeps only its job.
            lent.grow(parsed_bytes(raw)[1])
            return make(jobs, body)

        # A call that is abandoned goes on, and the model stays open for it.
        return await self._calls(raw).call(work, lease.held())

    def _calls(self, raw: bytes) -> LeavableCalls:
        is_short = len(raw) <= _SHORT_BYTES and not _CONSTRAINED.search(raw)
        return self._preparing_short if is_short else self._preparing

    def begin(self, job: Job, lease: Lease, given_up: asyncio.Event, idle_s: float | None) -> Work:
        """Write the replies to a request that has joined the queue, when its turn comes.

        Args:
            lease: of the model, ended with the writing.
            given_up: set if the reader falls too far behind.
            idle_s: see ``Lease.end``.
        """
        kept = Loan(self.ledger, "memory for answers")
        work = Work(job, lease.jobs.model, self.queue, kept, places=lease.places, given_up=given_up)
        self._works.add(work)

        def ended(_: object) -> None:
            self._works.discard(work)
            for answer in work.answers:
                self.metrics.wrote(answer.statistics)
            lease.end(idle_s)

        work.task.add_done_callback(ended)
        return work

    def stop(self) -> None:
        """Cancel all active and waiting requests."""
        self.queue.close()
        self.models.stop()
        for work in tuple(self._works):
            work.stop()

    async def close(self) -> None:
        """Stop everything, wait until the models are free, and end the threads."""
        self.stop()
        if self._works:
            await asyncio.wait([work.task for work in self._works])
        await self._preparing.close()
        await self._preparing_short.close()
        await self.models.close()
        self._of_all.give_back(*_LINE, self._claimed)
