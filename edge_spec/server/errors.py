"""Errors as OpenAI's clients expect them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

__all__ = ["ApiError", "api_error", "bad_value", "in_fields", "too_long"]

_SERVER_ERROR = "server_error"


class ApiError(Exception):
    """An error response in OpenAI's form.

    Args:
        status: of HTTP.
        kind: OpenAI's ``type`` of error.
        code: what programs look at.
        param: the field of the request at fault.
        headers: further ones of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        """Return the body of the response."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def bad_value(param: str, message: str) -> ApiError:
    """Return the error for a field with a wrong value."""
    return ApiError(400, f"{param}: {message}", code="invalid_value", param=param)


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


def api_error(error: BaseException, prompt: str = "messages") -> ApiError:
    """Return the response to an error; unexpected errors reveal no details.

    Args:
        prompt: the field that holds the prompt.
    """
    match error:
        case ApiError():
            return error
        case PromptTooLong():
            return too_long(error.n_ctx, str(error.n_prompt), prompt)
        case GrammarDeadEnd():
            return ApiError(400, in_fields(error), code="grammar_dead_end")
        case SettingsError():
            return ApiError(400, in_fields(error), code="invalid_value", param=_field_of(error.argument) or None)
        case PromptError():
            return ApiError(400, in_fields(error), code="invalid_prompt", param=prompt)
        case OutOfMemory():
            return ApiError(503, in_fields(error), kind=_SERVER_ERROR, code="out_of_memory")
        case Closed() | Cancelled():
            return ApiError(503, "the server is stopping; ask again later", kind=_SERVER_ERROR, code="stopping")
        case TimeoutError():
            return ApiError(
                504,
                "the request took longer than the server allows; lower max_tokens, or raise --timeout",
                kind=_SERVER_ERROR,
                code="timeout",
            )
        case EdgeSpecError():
            return ApiError(500, in_fields(error), kind=_SERVER_ERROR)
        case MemoryError():
            return ApiError(503, "the server is out of memory; ask for less", kind=_SERVER_ERROR, code="out_of_memory")
        case _:
            return ApiError(500, "the server failed; its log says why", kind=_SERVER_ERROR)


def in_fields(error: EdgeSpecError) -> str:
    """Return an error as one line, with fields of requests in place of arguments."""
    return error.spelled(_in_fields)


def _in_fields(named: str | Arguments) -> str:
    return plainly(_field_of(named) if isinstance(named, str) else named)


def _field_of(argument: str) -> str:
    return (REPLY_OPTIONS[argument].field if argument in REPLY_OPTIONS else None) or argument
