"""Responses in pieces, and detection of disconnected clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge_spec.server.bodies import ClientGone
from edge_spec.server.dialect import Dialect
from edge_spec.server.errors import ApiError, api_error
from edge_spec.server.request_log import GONE, Record
from edge_spec.server.settings import ServerSettings

__all__ = ["JsonPieces", "PieceStream", "unless_gone"]

T = TypeVar("T")

_AT_ONCE_BYTES = 1 << 16

_LOOK_S = 0.2
"""So often is looked whether there is news of what is done before anything is written."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T], given_up: asyncio.Event | None = None) -> T:
    """Return the result of some work; cancel it when the client disconnects.

    Args:
        given_up: set when the client is given up, as if it had gone.

    Raises:
        ClientGone: the client disconnected.
    """
    working = asyncio.ensure_future(work)
    leaving: list[asyncio.Future[Any]] = [asyncio.ensure_future(_disconnected(receive))]
    if given_up is not None:
        leaving.append(asyncio.ensure_future(given_up.wait()))
    try:
        await asyncio.wait((working, *leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, *leaving):
            task.cancel()
        # Others may use the model only when the work has stopped.
        with suppress(BaseException):
            await asyncio.wait((working, *leaving))
        if working.done() and not working.cancelled():
            working.exception()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class JsonPieces(Response):
    """A JSON response that is sent in pieces.

    Args:
        deadline: when the client must have taken it, by the clock of the event loop.
        on_close: called at the end, also if nothing was ever sent.
    """

    media_type = "application/json"

    def __init__(self, pieces: Sequence[bytes | bytearray], deadline: float, on_close: Callable[[], object]) -> None:
        super().__init__(headers={"content-length": str(sum(map(len, pieces)))})
        self._pieces = pieces
        self._deadline = deadline
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout_at(self._deadline):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                for piece in self._pieces:
                    # Send in parts: a sent part is copied and waits for the client without being counted.
                    for start in range(0, len(piece), _AT_ONCE_BYTES):
                        await _send(send, bytes(piece[start : start + _AT_ONCE_BYTES]))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._on_close()


class PieceStream(Response):
    """A response in pieces, which are sent as they come. An error after the first of them is a piece as well.

    Args:
        dialect: what the stream is, and how it waits and fails.
        settings: how often a silent connection gets a sign, and how long a client has to take the last error.
        deadline: when it has to end, by the clock of the event loop.
        record: where the outcome goes: an error that comes after the first event cannot change the status any more.
        given_up: set when the client is given up.
        on_close: called at the end, also if nothing was ever sent.
        progress: returns what is done before anything is written, in a line; empty if there is nothing to say.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        dialect: Dialect,
        settings: ServerSettings,
        deadline: float,
        record: Record,
        given_up: asyncio.Event,
        on_close: Callable[[], object],
        progress: Callable[[], str] = lambda: "",
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=dialect.media_type)
        del self.headers["content-length"]
        self._pieces = pieces
        self._dialect = dialect
        self._settings = settings
        self._deadline = deadline
        self._record = record
        self._given_up = given_up
        self._on_close = on_close
        self._progress = progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Give up a client that has taken nothing for this long.
        try:
            async with asyncio.timeout_at(self._deadline + self._settings.last_words_s):
                await unless_gone(receive, self._run(send), self._given_up)
        except (ClientGone, OSError) as error:
            self._record.status = _status_of(error)
        finally:
            self._on_close()

    async def _run(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        waiting = asyncio.ensure_future(self._keep_alive(send))
        try:
            async with asyncio.timeout_at(self._deadline):
                async for piece in self._pieces:
                    waiting.cancel()
                    await _send(send, piece)
        except Exception as error:
            failure = api_error(error)
            self._record.status = failure.status
            await _send(send, self._dialect.failed(failure))
            if not isinstance(error, ApiError) and failure.status == 500:
                raise
        finally:
            waiting.cancel()
            close = getattr(self._pieces, "aclose", None)
            if close is not None:
                await close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        loop, told = asyncio.get_running_loop(), ""
        silent_since = loop.time()
        while True:
            await asyncio.sleep(min(_LOOK_S, self._settings.keep_alive_s))
            said = self._progress()
            if (said and said != told) or loop.time() - silent_since >= self._settings.keep_alive_s:
                await _send(send, self._dialect.comment(said or "waiting"))
                told, silent_since = said, loop.time()


def _status_of(error: Exception) -> int:
    # ``TimeoutError`` is an ``OSError``, too.
    return api_error(error).status if isinstance(error, TimeoutError) else GONE


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
