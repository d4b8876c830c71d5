"""Errors of requests, which each dialect writes in its own form."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from edge_spec.errors import (
    Arguments,
    Cancelled,
    Closed,
    EdgeSpecError,
    GrammarDeadEnd,
    OutOfMemory,
    PromptError,
    PromptTooLong,
    SettingsError,
    plainly,
)
from edge_spec.generation.options import REPLY_OPTIONS

__all__ = ["ApiError", "Names", "api_error", "bad_value", "in_fields", "too_long", "unsupported"]

Names = Mapping[str, str]
"""The fields of a request by what they are in Python: options of replies, and ``prompt``."""

_OPENAI: Names = MappingProxyType({"prompt": "messages"})


class ApiError(Exception):
    """An error response.

    Args:
        status: of HTTP.
        code: what programs look at.
        param: the field of the request at fault.
        headers: further ones of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


def bad_value(param: str, message: str) -> ApiError:
    """Return the error for a field with a wrong value."""
    return ApiError(400, f"{param}: {message}", code="invalid_value", param=param)


def unsupported(param: str) -> ApiError:
    """Return the error for a field that is not offered."""
    return ApiError(400, f"{param}: this server does not offer it; leave it out", code="unsupported", param=param)


def too_long(n_ctx: int, n_tokens: str, prompt: str) -> ApiError:
    """Return the error for a prompt that does not fit.

    Args:
        n_tokens: how many it has, in words.
        prompt: the field that holds it.
    """
    return ApiError(
        400,
        f"This model's maximum context length is {n_ctx} tokens, and the prompt has {n_tokens}; "
        "shorten it, or start the server with a larger --ctx",
        code="context_length_exceeded",
        param=prompt,
    )


def api_error(error: BaseException, names: Names = _OPENAI) -> ApiError:
    """Return the response to an error; unexpected errors reveal no details.

    Args:
        names: how the request spells what is at fault.
    """
    match error:
        case ApiError():
            return error
        case PromptTooLong():
            return too_long(error.n_ctx, error.count, names["prompt"])
        case GrammarDeadEnd():
            return ApiError(400, in_fields(error, names), code="grammar_dead_end")
        case SettingsError():
            param = _field_of(names, error.argument) or None
            return ApiError(400, in_fields(error, names), code="invalid_value", param=param)
        case PromptError():
            return ApiError(400, in_fields(error, names), code="invalid_prompt", param=names["prompt"])
        case OutOfMemory():
            return ApiError(503, in_fields(error, names), code="out_of_memory")
        case Closed() | Cancelled():
            return ApiError(503, "the server is stopping; ask again later", code="stopping")
        case TimeoutError():
            return ApiError(
                504,
                "the request took longer than the server allows; lower max_tokens, or raise --timeout",
                code="timeout",
            )
        case EdgeSpecError():
            return ApiError(500, in_fields(error, names))
        case MemoryError():
            return ApiError(503, "the server is out of memory; ask for less", code="out_of_memory")
        case _:
            return ApiError(500, "the server failed; its log says why")


def in_fields(error: EdgeSpecError, names: Names = _OPENAI) -> str:
    """Return an error as one line, with fields of requests in place of arguments."""
    return error.spelled(partial(_in_fields, names))


def _in_fields(names: Names, named: str | Arguments) -> str:
    return plainly(_field_of(names, named) if isinstance(named, str) else named)


def _field_of(names: Names, argument: str) -> str:
    of_openai = REPLY_OPTIONS[argument].field if argument in REPLY_OPTIONS else None
    return names.get(argument) or of_openai or argument
