"""Log and count each request once, whatever its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_spec.server.dialects import dialect_at
from edge_spec.server.errors import ApiError
from edge_spec.server.service import Service

__all__ = ["GONE", "Record", "RequestLog", "record_of", "refused"]

GONE = 499
"""The status in logs and counts if the client disconnected; it is never sent."""

_MODELS = "/v1/models/"
_OTHER = "other"
_MAX_PATH = 200


@dataclass
class Record:
    """The outcome of a request, for the log.

    Attributes:
        status: of HTTP, or what became of it after that had been sent; None before anything is certain.
        is_stream: whether the response is a stream of events.
        summary: says what has been read and written.
    """

    status: int | None = None
    is_stream: bool = False
    summary: Callable[[], str] = lambda: ""


def record_of(connection: HTTPConnection) -> Record:
    """Return the record of a request, or a new one if the request bypassed the log."""
    found: Record = getattr(connection.state, "record", None) or Record()
    return found


def refused(connection: HTTPConnection, failure: ApiError) -> JSONResponse:
    """Return the response for an error in the form of its dialect, and record its code for the log."""
    record_of(connection).summary = lambda: f", {failure.code or 'server_error'}"
    error = dialect_at(connection.scope["path"]).error(failure)
    return JSONResponse(error, failure.status, failure.headers)


class RequestLog:
    """Counts and logs all requests, also refused and unanswered ones.

    Args:
        paths: addresses that are counted by their names; the others are counted together, since a client may invent
            as many as it likes.
    """

    def __init__(self, app: ASGIApp, paths: Iterable[str]) -> None:
        self._app = app
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = perf_counter()
        record = scope.setdefault("state", {})["record"] = Record()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and record.status is None:
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            record.status = record.status if record.status not in (None, 200) else 500
            raise
        finally:
            service: Service = scope["app"].state.service
            status = record.status or GONE
            service.metrics.asked(self._name(scope["path"]), status)
            path = ascii(scope["path"])[1:-1][:_MAX_PATH]
            streamed = ", streamed" if record.is_stream else ""
            seconds = perf_counter() - start
            service.settings.log(f"{scope['method']} {path} {status}{streamed}{record.summary()}, {seconds:.1f} s")

    def _name(self, path: str) -> str:
        if path in self._paths:
            return path
        return f"{_MODELS}{{name}}" if path.startswith(_MODELS) else _OTHER
