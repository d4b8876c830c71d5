"""The rules of a grammar while a JSON schema is converted, and what the converters share."""

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
"""Dates end on the 28th, since a grammar cannot count the days of a month, and begin with the year 1, as in Python."""

_SHARED = {
    # Characters that need no escape, without surrogates; and the short escapes.
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
"""llama.cpp's limit."""


def fail(place: str, what: str, hint: str = "leave it out, or check it after the reply") -> NoReturn:
    """Refuse a part of a schema.

    Raises:
        SettingsError: always.
    """
    raise SettingsError(f"at {place}: {what}", argument="json_schema", hint=hint)


def literal(text: str) -> str:
    """A text in GBNF."""
    escaped = "".join(f"\\x{ord(c):02X}" if ord(c) < 32 else "\\" + c if c in '"\\' else c for c in text)
    return f'"{escaped}"'


def json_literal(value: Any) -> str:
    """A value as JSON, in GBNF."""
    return literal(json.dumps(value, ensure_ascii=False))


def repeat(item: str, least: int, most: int | None) -> str:
    """``item`` repeated ``least`` to ``most`` times; without an upper bound if ``most`` is None."""
    return f"{item}{{{least},{'' if most is None else most}}}"


class Rules:
    """Rules by name, in the order in which they were made."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}

    def grammar(self, root: str) -> str:
        """All of them as GBNF, beginning with ``root``."""
        lines = [f"root ::= {root}", *(f"{name} ::= {rule}" for name, rule in self._rules.items())]
        return "\n".join(lines) + "\n"

    def shared(self, name: str) -> str:
        """The name of a rule that any schema may use, added when it is first used."""
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
        """The name of a rule that ``write`` will define: it may refer to itself."""
        return self.named("")

    def write(self, name: str, rule: str) -> None:
        """Define a reserved rule."""
        self._rules[name] = rule
