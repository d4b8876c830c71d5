"""Messages in the words of the command line: options in place of arguments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from edge_spec.errors import Arguments, EdgeSpecError, spelled

__all__ = ["described", "in_options", "option_of", "sampling_in_words"]

_OTHERS = {"n": "--answers", "timeout_s": "--timeout", "max_body_bytes": "--max-body", "idle_s": "--keep-alive"}
"""Options of single verbs whose names differ from their arguments."""

_COMMANDS = {
    "retry()": "/retry",
    "continue_answer()": "/continue",
    "undo()": "/undo",
    "edit()": "/edit",
    "generate()": "edge-spec run",
}


def option_of(argument: str) -> str:
    """Return the option that sets an argument."""
    return _flags().get(argument, "--" + argument.replace("_", "-"))


def in_options(text: str) -> str:
    """Return a message of the library with options in place of arguments, see ``edge_spec.errors.Sentence``."""
    return spelled(text, _in_options)


def described(error: EdgeSpecError) -> str:
    """Return an error as one line."""
    return error.spelled(_in_options)


@cache
def _flags() -> dict[str, str]:
    """Return options by the arguments of ``load`` and ``generate`` that they set."""
    from edge_spec.controller.options import LOAD_OPTIONS
    from edge_spec.generation.options import REPLY_OPTIONS

    return {name: each.flag for name, each in (LOAD_OPTIONS | REPLY_OPTIONS).items() if each.flag} | _OTHERS


def _in_options(named: str | Arguments) -> str:
    """``n_ctx`` is ``--ctx``, and ``n_ctx=4096, kv_k='f16', kv_v='q8_0'`` is ``--ctx 4096 --kv f16/q8_0``."""
    if isinstance(named, str):
        return _COMMANDS.get(named, f"`{named}`") if named.endswith("()") else option_of(named)
    values = dict(named)
    if {"kv_k", "kv_v"} <= values.keys():
        values["kv_k"] = f"{values['kv_k']}/{values.pop('kv_v')}"
    return " ".join(
        option_of(name) if isinstance(value, bool) else f"{option_of(name)} {shlex.quote(str(value))}"
        for name, value in values.items()
    )


def sampling_in_words(values: Mapping[str, Any]) -> str:
    """Return fields of ``SamplerSettings`` with their values on a line."""
    return ", ".join(f"{name} {_value_in_words(value)}" for name, value in values.items())


def _value_in_words(value: float | Sequence[str]) -> str:
    if isinstance(value, int | float):
        # Whole numbers may be too large to be floats.
        return f"{value:g}" if isinstance(value, float) else str(value)
    return " ".join(map(json.dumps, value)) or "none"
