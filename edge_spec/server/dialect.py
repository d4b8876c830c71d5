"""The interface of dialects: how the clients of one API ask, and how they are answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edge_spec.server.errors import ApiError
from edge_spec.server.jobs import Job, JobMaker
from edge_spec.server.models import Models, ServedModel
from edge_spec.server.writing import Work

__all__ = ["Dialect", "Response", "Writing", "json_of", "sse"]


class Response(Protocol):
    """A request that the model can answer, and how its replies are told.

    Attributes:
        job: what the model has to write.
    """

    job: Job

    def chunks(self, work: Work) -> AsyncIterator[bytes]:
        """Yield the response in pieces, as the replies are written."""

    async def whole(self, work: Work) -> list[bytes | bytearray]:
        """Return the whole response in JSON, in pieces."""


Writing = Callable[[JobMaker, dict[str, Any]], Response | dict[str, Any]]
"""Makes a response of the body of a request, or JSON where there is nothing to write."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The addresses of an API.

    Attributes:
        begins: what they begin with, where other dialects have others.
        writes: by path, what makes a response.
        converts: by path, what makes JSON of the body of a request.
        describes: by path, what makes JSON of the body of a request about a model, which need not be open.
        tells: by path, what makes JSON of a name in that path, or of nothing.
        error: makes the body of an error response.
        failed: makes the last piece of a stream that fails.
        media_type: that of streams.
        comment: makes what is sent while nothing is written, since proxies may close silent connections, of what is
            done meanwhile.
        streams: whether a response is streamed where a request does not say.
        keep_alive: returns for how many seconds a request wants its model to stay open; None if it does not say.
        unloaded: returns the response to a request that only wants its model closed; None to any other.

    All may raise ``ApiError`` and errors of ``edge_spec.errors``.
    """

    begins: str
    writes: Mapping[str, Writing]
    converts: Mapping[str, Callable[[JobMaker, dict[str, Any]], Any]] = field(default_factory=dict)
    describes: Mapping[str, Callable[[Models, ServedModel, dict[str, Any]], Any]] = field(default_factory=dict)
    tells: Mapping[str, Callable[[Models, ServedModel | None], Any]] = field(default_factory=dict)
    error: Callable[[ApiError], dict[str, Any]]
    failed: Callable[[ApiError], bytes]
    media_type: str = "text/event-stream"
    comment: Callable[[str], bytes] = lambda said: f": {said}\n\n".encode()
    streams: bool = False
    keep_alive: Callable[[dict[str, Any]], float | None] = lambda body: None
    unloaded: Callable[[ServedModel, dict[str, Any]], dict[str, Any] | None] = lambda served, body: None


def json_of(value: Any) -> bytes:
    """Return a value in JSON, as responses have it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def sse(value: Any, name: str = "") -> bytes:
    """Return a server-sent event."""
    named = f"event: {name}\n" if name else ""
    return f"{named}data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()
