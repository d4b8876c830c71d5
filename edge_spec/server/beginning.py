"""A request on its way to the work on it: its body is read, its model is opened, and it becomes a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from edge_spec.memory import Loan
from edge_spec.server.dialect import Dialect, Response, Writing, json_of
from edge_spec.server.models import ServedModel
from edge_spec.server.service import Service
from edge_spec.server.writing import Work

__all__ = ["Beginning", "model_of"]

_SOON_S = 0.5
"""A stream whose model is not open by then begins without it: its client is told how far that is. Before that, errors
are responses with a status."""


class Beginning:
    """A request that has joined the queue, until it is written.

    Args:
        raw: its body.
        lent: the memory for it, which ends with its beginning.
        deadline: when its answer has to end, by the clock of the event loop.

    Attributes:
        given_up: set when the client is given up, see ``Work``.
        task: ends with the response and the work on it, or with JSON where there is nothing to write.
    """

    def __init__(
        self, service: Service, dialect: Dialect, make: Writing, raw: bytes, lent: Loan, deadline: float
    ) -> None:
        self.given_up = asyncio.Event()
        self._service = service
        self._dialect = dialect
        self._deadline = deadline
        self._awaited: ServedModel | None = None
        self._streams = False
        self.task = asyncio.ensure_future(self._begin(make, raw, lent))

    async def _begin(self, make: Writing, raw: bytes, lent: Loan) -> tuple[Response, Work] | dict[str, object]:
        service, dialect, lease = self._service, self._dialect, None
        try:
            with lent:
                async with asyncio.timeout_at(self._deadline):
                    body = await service.parsed(raw, lent)
                    served = await service.models.find(model_of(body))
                idle_s = None
                if service.models.are_several:
                    idle_s = dialect.keep_alive(body)
                    if (unloaded := dialect.unloaded(served, body)) is not None:
                        service.models.unload(served)
                        service.queue.leave()
                        return unloaded
                self._awaited, self._streams = served, body.get("stream", dialect.streams) is True
                lease = await service.models.lease(served, self._deadline)
                self._awaited = None
                async with asyncio.timeout_at(self._deadline):
                    response = await service.prepare(make, lease, body, raw, lent)
                if not isinstance(response, dict):
                    return response, service.begin(response.job, lease, self.given_up, idle_s)
            lease.end(idle_s)
            service.queue.leave()
            return response
        except BaseException:
            if lease is not None:
                lease.end()
            service.queue.leave()
            raise

    @property
    def is_late(self) -> bool:
        """Whether a stream waits for its model."""
        return self._streams and self._awaited is not None and not self.task.done()

    @property
    def progress(self) -> str:
        """What is done to open the model, in a line; empty while nothing is."""
        served = self._awaited
        return f"{served.name}: {served.progress}" if served is not None and served.progress else ""

    async def wait(self) -> None:
        """Wait until it has begun, or failed, or a stream has waited for a while for its model."""
        await asyncio.wait((self.task,), timeout=_SOON_S)
        if not self.is_late:
            await asyncio.wait((self.task,))

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the response, when it has begun, in pieces."""
        begun = await asyncio.shield(self.task)
        if isinstance(begun, dict):
            yield json_of(begun) + b"\n"
            return
        response, work = begun
        async for piece in response.chunks(work):
            yield piece

    def close(self) -> None:
        """Give the request up. Safe to call twice."""
        if not self.task.cancel() and not self.task.cancelled() and self.task.exception() is None:
            begun = self.task.result()
            if not isinstance(begun, dict):
                begun[1].close()


def model_of(body: dict[str, object]) -> str | None:
    """Return the name of the model in a request; None without one, or where it is no text, which is refused later."""
    for field in ("model", "name"):
        name = body.get(field)
        if isinstance(name, str):
            return name
    return None
