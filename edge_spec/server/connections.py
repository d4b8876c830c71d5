"""Limit the number of connections, and the time to send the head of a request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from edge_spec.server.dialects import dialect_at
from edge_spec.server.errors import ApiError
from edge_spec.server.settings import ServerSettings

__all__ = ["BoundedProtocol", "is_crowded"]

_CROWDED = "edge_spec.crowded"
_REFUSED_TOGETHER = 64
"""This many more connections get an error response; further ones are closed at once."""


def is_crowded(scope: Scope) -> bool:
    """Return whether a request came while there were too many connections."""
    return bool(scope.get("state", {}).get(_CROWDED))


def _has_two_lengths(scope: Scope) -> bool:
    """Return whether a request states its length twice: a proxy may have read it differently."""
    return {b"transfer-encoding", b"content-length"} <= {name for name, _ in scope.get("headers", ())}


def _closing(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            others = [each for each in message.get("headers", ()) if each[0].lower() != b"connection"]
            message = {**message, "headers": [*others, (b"connection", b"close")]}
        await send(message)

    return sent


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, with a time limit for the request line and headers.

    uvicorn itself bounds only connections that are silent between two requests. Bodies are bounded where they are
    read.

    Args:
        settings: how long the head of a request may take, and how many connections there may be; requests of further
            ones are marked, see ``is_crowded``.
        *given, **more: as uvicorn gives them.
    """

    def __init__(self, settings: ServerSettings, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._head_s, self._max_connections = settings.head_timeout_s, settings.max_connections
        self._timer: asyncio.TimerHandle | None = None
        app: Any = self.app

        async def marked(scope: Scope, receive: Receive, send: Send) -> None:
            scope.setdefault("state", {})[_CROWDED] = len(self.connections) > self._max_connections
            await app(scope, receive, _closing(send) if _has_two_lengths(scope) else send)

        self.app = marked

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._max_connections + _REFUSED_TOGETHER:
            transport.abort()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """As uvicorn, in the form of the API."""
        error = ApiError(400, f"{msg.removesuffix('.')}; send HTTP/1.1", code="invalid_http")
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=json.dumps(dialect_at("/").error(error)).encode()),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    @property
    def _waits_for_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        if not self._waits_for_head:
            self._forget()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._head_s, self._give_up)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self._waits_for_head and not self.transport.is_closing():
            self.transport.close()
