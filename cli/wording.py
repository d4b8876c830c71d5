"""Messages in the words of the command line: the library names arguments, a person types options."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from edge_spec.errors import EdgeSpecError, SettingsError

__all__ = ["OPTIONS", "described", "in_options", "option_of", "sampling_in_words"]

_SAME = (
    "draft",
    "intermediate",
    "speculation",
    "engine",
    "draft_engine",
    "intermediate_engine",
    "draft_limit",
    "memory",
    "verbose",
    "max_tokens",
    "stop",
    "ignore_eos",
    "seed",
    "raw",
    "system",
    "grammar",
    "json_schema",
    "host",
    "port",
    "api_key",
    "insecure",
    "requantize",
)
_RENAMED = {
    "n": "--answers",
    "n_ctx": "--ctx",
    "min_n_ctx": "--ctx",
    "n_threads": "--threads",
    "n_threads_batch": "--threads-batch",
    "kv_k": "--kv",
    "kv_v": "--kv",
    "repack": "--no-repack",
    "dry_breakers": "--dry-breaker",
    "timeout_s": "--timeout",
    "max_body_bytes": "--max-body",
}
OPTIONS = {name: "--" + name.replace("_", "-") for name in _SAME} | _RENAMED
"""Options by the arguments of ``load``, ``generate`` and ``chat`` that they set."""

_COMMANDS = {
    "retry()": "/retry",
    "continue_answer()": "/continue",
    "undo()": "/undo",
    "edit()": "/edit",
    "generate()": "edge-spec run",
}


def option_of(argument: str) -> str:
    """The option that sets an argument."""
    return OPTIONS.get(argument, "--" + argument.replace("_", "-"))


def in_options(text: str) -> str:
    """A message of the library with options in place of arguments, see ``edge_spec.errors``.

    `n_ctx=4096, kv_k='f16', kv_v='q8_0'` in backticks becomes ``--ctx 4096 --kv f16/q8_0``.
    """
    return re.sub("`([^`]+)`", lambda found: _as_options(found[1]) or found[0], text)


def described(error: EdgeSpecError) -> str:
    """An error as one line."""
    message = error.message
    if isinstance(error, SettingsError) and error.argument:
        message = f"{option_of(error.argument)} {error.problem}"
    return in_options(f"{message}; {error.hint}" if error.hint else message)


def _as_options(text: str) -> str | None:
    """What stood between backticks; None if it is not about arguments."""
    if text in OPTIONS or text in _COMMANDS:
        return OPTIONS.get(text) or _COMMANDS[text]
    try:
        call = ast.parse(f"call({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        values = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError):
        return None
    if not values or call.args or not values.keys() <= OPTIONS.keys():
        return None
    if {"kv_k", "kv_v"} <= values.keys():
        values["kv_k"] = f"{values['kv_k']}/{values.pop('kv_v')}"
    return " ".join(_option(name, value) for name, value in values.items())


def _option(name: str, value: Any) -> str:
    return OPTIONS[name] if isinstance(value, bool) else f"{OPTIONS[name]} {shlex.quote(str(value))}"


def sampling_in_words(values: Mapping[str, Any]) -> str:
    """Fields of ``SamplerSettings`` that are numbers or lists of texts, and their values, on a line."""
    return ", ".join(f"{name} {_value_in_words(value)}" for name, value in values.items())


def _value_in_words(value: float | Sequence[str]) -> str:
    if isinstance(value, int | float):
        return f"{value:g}"
    return " ".join(map(json.dumps, value)) or "none"
