"""``/set``: names and values as they are typed."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from edge_spec.chat import ChatSession
from edge_spec.cli.terminal.display import THOUGHTS, Display
from edge_spec.errors import SettingsError
from edge_spec.sampling import SamplerSettings

__all__ = ["change", "names", "settings_lines"]

_DEFAULT = ("default", "none")
_ALIASES = {"temp": "temperature", "n": "max_tokens", "dry_breaker": "dry_breakers"}
"""Names that the command line takes as well."""
_SAMPLING = {field.name: field.type for field in fields(SamplerSettings) if field.name != "attempt"}
_KINDS = {
    **_SAMPLING,
    "dry_breakers": "texts",
    "max_tokens": "int",
    "stop": "texts",
    "grammar": "text",
    "json_schema": "text",
    "thoughts": "choice",
}


_ESCAPES = {"\\": "\\", "n": "\n", "t": "\t", "r": "\r"}
_ESCAPE = re.compile(r"\\([\\ntr])")


def names() -> list[str]:
    """Names of all settings."""
    return list(_KINDS)


def settings_lines(session: ChatSession, display: Display) -> list[str]:
    """Every setting and its value; a star marks changed ones."""
    defaults = session.model.sampler_settings(seed=0)
    values = {name: getattr(defaults, name) for name in _SAMPLING}
    values |= {"logit_bias": {}, "max_tokens": "as many as fit", "stop": [], "grammar": "none", "json_schema": "none"}
    values |= session.options | {"thoughts": display.thoughts}
    changed = session.options
    return [f"{'*' if name in changed else ' '} {name:20}{_shown(values[name])}" for name in _KINDS]


def change(session: ChatSession, display: Display, argument: str) -> str:
    """Apply ``NAME VALUE`` or ``NAME=VALUE``; returns the setting as it is now.

    Raises:
        SettingsError: there is no such setting, or its value is out of range; nothing is changed.
    """
    head, _, text = argument.partition("=") if _is_assignment(argument) else argument.partition(" ")
    name, text = _name(head), text.strip()
    if name not in _KINDS:
        near = get_close_matches(name, _KINDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KINDS)}"
        raise SettingsError(f"there is no setting {name!r}", hint=hint)
    if not text:
        raise SettingsError(f"{name} needs a value", hint=f"such as /set {name} {_example(name)}; or default")
    if name == "thoughts":
        if text not in THOUGHTS:
            raise SettingsError(f"thoughts cannot be {text!r}", hint=f"choose one of {', '.join(THOUGHTS)}")
        display.thoughts = text
        return f"thoughts {text}"
    value = None if text.lower() in _DEFAULT else _value(name, text)
    if name == "max_tokens" and value is not None and value < 1:
        raise SettingsError(f"max_tokens is {value} and must be 1 or more")
    if name == "seed" and value is None:
        value = session.model.sampler_settings().seed
    session.set(**{name: value})
    return f"{name} {_shown(value) if value is not None else 'reset to its default'}"


def _is_assignment(argument: str) -> bool:
    return _name(argument.partition("=")[0]) in _KINDS and "=" in argument


def _name(text: str) -> str:
    name = text.strip().lstrip("-").replace("-", "_").lower()
    return _ALIASES.get(name, name)


def _value(name: str, text: str) -> Any:
    kind = _KINDS[name]
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
        if kind == "text":
            return text
        if kind == "texts":
            return [_ESCAPE.sub(lambda found: _ESCAPES[found[1]], part) for part in shlex.split(text)]
        pairs = (pair.split("=") for pair in text.replace(",", " ").split())
        return {int(token): float(bias) for token, bias in pairs}
    except ValueError:
        raise SettingsError(f"{text[:40]!r} is not a valid {name}", hint=f"try {_example(name)}") from None


def _example(name: str) -> str:
    examples = {
        "logit_bias": "17=-2.5",
        "stop": '"The end"',
        "thoughts": "hide",
        "max_tokens": "200",
        "dry_breakers": '"." ":"',
        "grammar": 'root ::= "yes" | "no"',
        "json_schema": '{"type": "object"}',
    }
    return examples.get(name) or str(getattr(SamplerSettings(), name))


def _escaped(text: str) -> str:
    """A text on one line."""
    for sign, character in _ESCAPES.items():
        text = text.replace(character, "\\" + sign)
    return text


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{token}={bias:g}" for token, bias in value.items()) or "nothing"
    if isinstance(value, list | tuple):
        return " ".join(shlex.quote(_escaped(text)) for text in value) or "nothing"
    return str(value)
