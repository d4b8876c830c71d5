"""Read the JSON body of a request, bounded in size and time."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from starlette.requests import ClientDisconnect, Request

from edge_spec.errors import BudgetExceeded
from edge_spec.foreign import parse_json
from edge_spec.memory import Loan
from edge_spec.server.errors import ApiError, api_error
from edge_spec.server.settings import ServerSettings

__all__ = ["Bodies", "ClientGone", "json_object", "parsed_bytes"]

_TOGETHER = 16
_CLOSE = {"Connection": "close"}

_STRING = re.compile(rb'"(?:[^"\\]+|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, also one without an end: another search for its end would take quadratic time."""

_SOME = re.compile(rb'(?:[^"]{1,4096}+|"(?:[^"\\]+|\\.)*+"){1,4096}+', re.DOTALL)
"""A part of a body that does not end inside a string."""

_MOST_PARTS = 200_000
"""The most lists, objects and names: while Python parses and collects them, no other request proceeds."""

_BYTES_OF_TEXT, _BYTES_OF_FIELDS = 6, 1100
_BYTES_BY_MARK = {b"{": 300, b"[": 100, b",": 100, b":": 200}
"""Bytes of the values that come after each of these marks.

Measured with bodies of 4 MB of texts, messages, lists, objects and biases.
"""


class ClientGone(Exception):
    """The client has disconnected."""


class Bodies:
    """Reads bodies. Belongs to one event loop.

    Args:
        settings: ``max_body_bytes`` is the largest one; all that are being read may have 16 times as much together.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._max_bytes = settings.max_body_bytes
        self._most_read = settings.max_body_bytes + settings.discarded_bytes
        self._timeout_s = settings.body_timeout_s
        self._left = _TOGETHER * settings.max_body_bytes

    async def read(self, request: Request, lent: Loan) -> bytes:
        """Return the body of a request, which need not be JSON.

        Args:
            lent: where its memory is claimed.

        Raises:
            ApiError: it is too large, comes too slowly, or too much is being read already.
            ClientGone: the client disconnected before the end of the body.
        """
        try:
            # Such a slow client may only want to keep a connection busy.
            async with asyncio.timeout(self._timeout_s):
                return await self._read(request, lent)
        except TimeoutError:
            message = f"the body did not arrive within {self._timeout_s:g} s; send it again"
            raise ApiError(408, message, code="timeout", headers=_CLOSE) from None
        except ClientDisconnect:
            raise ClientGone from None

    async def _read(self, request: Request, lent: Loan) -> bytes:
        announced = request.headers.get("content-length", "")
        n_announced = int(announced[:18]) if announced.isascii() and announced.isdigit() else 0
        refused = _too_large(self._max_bytes) if n_announced > self._max_bytes else None
        if refused is not None and "expect" in request.headers:
            # The client waits for permission to send.
            raise refused
        raw, n_bytes = bytearray(), 0
        try:
            async for part in request.stream():
                n_bytes += len(part)
                if refused is None and n_bytes > self._max_bytes:
                    refused = _too_large(self._max_bytes)
                elif refused is None and len(part) > self._left:
                    refused = _too_many()
                if refused is None:
                    refused = _no_room(lent, len(part))
                if refused is None:
                    self._left -= len(part)
                    raw += part
                elif n_bytes > self._most_read:
                    break
        finally:
            self._left += len(raw)
        if refused is not None:
            raise refused
        return bytes(raw)


def parsed_bytes(raw: bytes) -> tuple[int, int]:
    """Estimate the memory that a body's values take, and that of the fields and the prompt made of them.

    Raises:
        ApiError: there are too many of them.
    """
    n_bytes, place, n_parts, n_objects = _BYTES_OF_TEXT * len(raw), 0, 0, 0
    while place < len(raw):
        # Let other threads proceed in between.
        found = _SOME.match(raw, place)
        end = found.end() if found is not None and found.end() > place else len(raw)
        marks = _STRING.sub(b"", raw[place:end])
        counts = {mark: marks.count(mark) for mark in _BYTES_BY_MARK}
        n_parts += sum(counts.values()) - counts[b","]
        if n_parts > _MOST_PARTS:
            message = f"the body holds more than {_MOST_PARTS} lists, objects and names; shorten it"
            raise ApiError(413, message, code="body_too_large")
        n_bytes += sum(size * counts[mark] for mark, size in _BYTES_BY_MARK.items())
        n_objects += counts[b"{"]
        place = end
    return n_bytes, _BYTES_OF_FIELDS * n_objects


def json_object(raw: bytes) -> dict[str, Any]:
    """Return the object that a body holds.

    Raises:
        ApiError: it is not a JSON object.
    """
    try:
        body = parse_json(raw, finite=True)
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}; correct it there", code="invalid_json") from None
    if b"\\u" in raw:
        _refuse_half_characters(body)
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return body


def _too_large(max_bytes: int) -> ApiError:
    # ``_CLOSE``: the unread rest must not be parsed as the next request.
    return ApiError(
        413,
        f"the body is larger than {max_bytes} bytes; shorten it, or start the server with a larger --max-body",
        code="body_too_large",
        headers=_CLOSE,
    )


def _no_room(lent: Loan, n_bytes: int) -> ApiError | None:
    """Claim the memory of a part of a body; return the error if the budget has no room for it."""
    try:
        # While the parts are joined, they exist twice.
        lent.grow(2 * n_bytes)
    except BudgetExceeded as error:
        refused = api_error(error)
        refused.headers |= _CLOSE
        return refused
    return None


def _too_many() -> ApiError:
    return ApiError(
        429,
        "too many large requests arrive at once; send it again in 1 s",
        code="queue_full",
        headers={**_CLOSE, "Retry-After": "1"},
    )


def _refuse_half_characters(body: Any) -> None:
    """Raise if strings hold halves of surrogate pairs, which JSON can escape but which are not text."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(
            400, "the body holds half of a surrogate pair; send whole characters", code="invalid_json"
        ) from None
