"""The body of a request: bounded in size and time, and JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from edge_spec.server.errors import ApiError

__all__ = ["ClientGone", "read_json"]

_MAX_READ_S = 60
"""A body that takes longer to arrive is not waited for: whoever sends it may want to keep a connection busy."""

_DISCARDED_BYTES = 64 << 20
"""What is too large is read and thrown away up to so much more: where a connection is closed while its client still
sends, the client may never see the answer."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def read_json(request: Request, max_bytes: int) -> dict[str, Any]:
    """The object that a request brings.

    Raises:
        ApiError: it is too large, comes too slowly, or is not a JSON object. ClientGone: it never came whole.
    """
    try:
        async with asyncio.timeout(_MAX_READ_S):
            raw = await _read(request, max_bytes)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {_MAX_READ_S} s; send it again", code="timeout") from None
    except ClientDisconnect:
        raise ClientGone from None
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}; correct it there", code="invalid_json") from None
    if b"\\u" in raw:
        _refuse_half_characters(body)
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object, as OpenAI's API describes it", code="invalid_json")
    return body


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    is_too_large = announced.isascii() and announced.isdigit() and int(announced[:18]) > max_bytes
    if is_too_large and "expect" in request.headers:
        # The client asks before it sends.
        raise _too_large(max_bytes)
    raw, n_bytes = bytearray(), 0
    async for part in request.stream():
        n_bytes += len(part)
        is_too_large = is_too_large or n_bytes > max_bytes
        if not is_too_large:
            raw += part
        elif n_bytes > max_bytes + _DISCARDED_BYTES:
            break
    if is_too_large:
        raise _too_large(max_bytes)
    return bytes(raw)


def _too_large(max_bytes: int) -> ApiError:
    # What has not been read must not be taken for the next request.
    return ApiError(
        413,
        f"the body is larger than {max_bytes} bytes; shorten it, or start the server with a larger --max-body",
        code="body_too_large",
        headers={"Connection": "close"},
    )


def _refuse_half_characters(body: Any) -> None:
    """JSON can name halves of surrogate pairs, which are no text."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(
            400, "the body holds half of a surrogate pair; send whole characters", code="invalid_json"
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
