"""``/set``: parse names and values."""

from __future__ import annotations

import re
import shlex
from difflib import get_close_matches
from typing import Any

from edge_spec.chat import ChatSession
from edge_spec.cli.terminal.display import THOUGHTS, Display
from edge_spec.errors import SettingsError
from edge_spec.generation.options import ANSWER_OPTIONS
from edge_spec.sampling import SAMPLER_OPTIONS

__all__ = ["change", "names", "settings_lines"]

_DEFAULT = ("default", "none")
_OPTIONS = {name: each for name, each in ANSWER_OPTIONS.items() if each.flag is not None and name != "ignore_eos"}
"""Settings of all answers."""


_EXAMPLES = {
    "max_tokens": "200",
    "stop": '"The end"',
    "seed": "7",
    "think": "off",
    "grammar": 'root ::= "yes" | "no"',
    "json_schema": '{"type": "object"}',
    "temperature": "0.5",
    "top_k": "20",
    "top_p": "0.9",
    "min_p": "0.1",
    "typical_p": "0.9",
    "top_n_sigma": "1.5",
    "repeat_penalty": "1.1",
    "frequency_penalty": "0.5",
    "presence_penalty": "0.5",
    "penalty_window": "128",
    "logit_bias": "17=-2.5",
    "dry_multiplier": "0.8",
    "dry_base": "2",
    "dry_allowed_length": "3",
    "dry_penalty_window": "256",
    "dry_breakers": '"." ":"',
    "xtc_probability": "0.5",
    "xtc_threshold": "0.2",
    "mirostat": "2",
    "mirostat_tau": "3",
    "mirostat_eta": "0.2",
    "thoughts": "show",
}
"""A value for each setting that is not its default."""

_TRUTHS = {"on": True, "true": True, "off": False, "false": False}
_ESCAPES = {"\\": "\\", "n": "\n", "t": "\t", "r": "\r"}
_ESCAPE = re.compile(r"\\([\\ntr])")


def names() -> list[str]:
    """Return the names of all settings."""
    return [*_OPTIONS, "thoughts"]


def settings_lines(session: ChatSession, display: Display) -> list[str]:
    """Return every setting and its value; a star marks changed ones."""
    changed, defaults = session.options, session.model.sampler_settings(seed=0)
    values = {name: each.shown or ("none" if each.default is None else each.default) for name, each in _OPTIONS.items()}
    values |= {name: getattr(defaults, name) for name in SAMPLER_OPTIONS} | changed | {"thoughts": display.thoughts}
    return [f"{'*' if name in changed else ' '} {name:20}{_shown(values[name])}" for name in names()]


def change(session: ChatSession, display: Display, argument: str) -> str:
    """Apply ``NAME VALUE`` or ``NAME=VALUE``; returns the setting as it is now.

    Raises:
        SettingsError: there is no such setting, or its value is out of range; nothing is changed.
    """
    head, _, text = argument.partition("=") if _is_assignment(argument) else argument.partition(" ")
    name, text = _name(head), text.strip()
    if name not in names():
        near = get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names())}"
        raise SettingsError(f"there is no setting {name!r}", hint=hint)
    if not text:
        raise SettingsError(f"{name} needs a value", hint=f"such as /set {name} {_EXAMPLES[name]}; or default")
    if name == "thoughts":
        if text not in THOUGHTS:
            raise SettingsError(f"thoughts cannot be {text!r}", hint=f"choose one of {', '.join(THOUGHTS)}")
        display.thoughts = text
        return f"thoughts {text}"
    value = None if text.lower() in _DEFAULT else _value(name, text)
    if name == "seed" and value is None:
        value = session.model.sampler_settings().seed
    session.set(**{name: value})
    return f"{name} {_shown(value) if value is not None else 'reset to its default'}"


def _is_assignment(argument: str) -> bool:
    return _name(argument.partition("=")[0]) in names() and "=" in argument


def _name(text: str) -> str:
    name = text.strip().lstrip("-").replace("-", "_").lower()
    typed = "--" + name.replace("_", "-")
    return next((each.name for each in _OPTIONS.values() if typed in (each.flag, "-" + each.short, each.short)), name)


def _value(name: str, text: str) -> Any:
    each = _OPTIONS[name]
    try:
        if each.kind is bool:
            return _TRUTHS[text.lower()]
        if each.kind in (int, float):
            return each.kind(text)
        if isinstance(each.default, tuple):
            return [_ESCAPE.sub(lambda found: _ESCAPES[found[1]], part) for part in shlex.split(text)]
        if not each.is_repeatable:
            return text
        pairs = (pair.split("=") for pair in text.replace(",", " ").split())
        return {int(token): float(bias) for token, bias in pairs}
    except (ValueError, KeyError):
        raise SettingsError(f"{text[:40]!r} is not a valid {name}", hint=f"try {_EXAMPLES[name]}") from None


def _escaped(text: str) -> str:
    """Return a text on one line."""
    for sign, character in _ESCAPES.items():
        text = text.replace(character, "\\" + sign)
    return text


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{token}={bias:g}" for token, bias in value.items()) or "nothing"
    if isinstance(value, list | tuple):
        return " ".join(shlex.quote(_escaped(text)) for text in value) or "nothing"
    return str(value)
