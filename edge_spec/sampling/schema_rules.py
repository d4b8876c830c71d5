"""The rules of a grammar while a JSON schema is being converted, and what its converters share."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from edge_spec.errors import SettingsError
from edge_spec.sampling.number_rules import integers, numbers

__all__ = ["FORMATS", "MAX_REPEATS", "Rules", "fail", "json_literal", "literal", "repeat"]

_HEX4 = "[0-9a-fA-F]{4}"
_YEAR = '("000" [1-9] | "00" [1-9] [0-9] | "0" [1-9] [0-9] [0-9] | [1-9] [0-9] [0-9] [0-9])'
_DATE = f'{_YEAR} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8])'
_TIME = '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("Z" | [+-] ("0" [0-9] | "1" [0-3]) ":" [0-5] [0-9])'
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": f'{_HEX4}{_HEX4} "-" {_HEX4} "-" {_HEX4} "-" {_HEX4} "-" {_HEX4}{_HEX4}{_HEX4}'.replace("}[", "} ["),
}
"""Dates end on the 28th, since grammars do not count the days of a month, and begin with the year 1, as programs do."""

_SHARED = {
    # Direct characters, but halves of surrogates and what has to be escaped; and the short escapes.
    "char": r'[\x20-\x21\x23-\x5B\x5D-\x7E\u00A0-\uD7FF\uE000-\uFFFC\U00010000-\U0010FFFF] | "\\" ["\\/bfnrt]',
    "string": r'"\"" char* "\""',
    "value": "object | array | string | number | truth | nothing",
    "object": r'"{" (string ": " value (", " string ": " value)*)? "}"',
    "array": '"[" (value (", " value)*)? "]"',
    "number": str(numbers({})),
    "integer": str(integers({})),
    "truth": '"true" | "false"',
    "nothing": '"null"',
}
_USES = {
    "string": ("char",),
    "object": ("string", "value"),
    "array": ("value",),
    "value": ("object", "array", "string", "number", "truth", "nothing"),
}
MAX_REPEATS = 2000
"""llama.cpp repeats nothing more often."""


def fail(place: str, what: str, hint: str = "leave it out, or check it after the reply") -> NoReturn:
    """Refuse a part of a schema.

    Raises:
        SettingsError: always.
    """
    raise SettingsError(f"the JSON schema at {place}: {what}", hint=hint)


def literal(text: str) -> str:
    """A text as GBNF writes it."""
    escaped = "".join(f"\\x{ord(c):02X}" if ord(c) < 32 else "\\" + c if c in '"\\' else c for c in text)
    return f'"{escaped}"'


def json_literal(value: Any) -> str:
    """A value as JSON, as GBNF writes it."""
    return literal(json.dumps(value, ensure_ascii=False))


def repeat(item: str, least: int, most: int | None) -> str:
    """``item`` at least and at most so often; without an upper bound if ``most`` is None."""
    return f"{item}{{{least},{'' if most is None else most}}}"


class Rules:
    """Rules by name, in the order of their making."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}

    def grammar(self, root: str) -> str:
        """All of them as GBNF, beginning with ``root``."""
        lines = [f"root ::= {root}", *(f"{name} ::= {rule}" for name, rule in self._rules.items())]
        return "\n".join(lines) + "\n"

    def shared(self, name: str) -> str:
        """The name of a rule that every schema may use, made when it is first wanted."""
        if name not in self._rules:
            self._rules[name] = _SHARED[name]
            for used in _USES.get(name, ()):
                self.shared(used)
        return name

    def named(self, rule: str) -> str:
        """The name of a new rule."""
        name = f"r{len(self._rules)}"
        self._rules[name] = rule
        return name

    def reserve(self) -> str:
        """The name of a rule that is still to be written with ``write``: it may name itself."""
        return self.named("")

    def write(self, name: str, rule: str) -> None:
        """Write a reserved rule."""
        self._rules[name] = rule
