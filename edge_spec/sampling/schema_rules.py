"""Rules of GBNF for the texts and the numbers of JSON schemas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from edge_spec.errors import SettingsError

__all__ = ["FORMATS", "MAX_REPEATS", "Rules", "any_of", "fail", "integers", "literal", "numbers", "repeat"]

_DIGITS = "[0-9]{0,14}"

_FRACTION = '("." [0-9]{1,15})?'

_POWER = "([eE] [+-]? [0-9]{1,2})?"


def integers(bounds: Mapping[str, int]) -> str | None:
    """Integers of at most 15 digits within minimum, maximum, exclusiveMinimum and exclusiveMaximum.

    None if there are none.
    """
    low, high = _range(bounds)
    alternatives = []
    if low is None or low < 0:
        # Without minus zero.
        alternatives += [f'"-" {rule}' for rule in _from_to(max(1, -high) if high is not None else 1, low and -low)]
    if high is None or high >= 0:
        alternatives += _from_to(max(0, low or 0), high)
    return "(" + " | ".join(alternatives) + ")" if alternatives else None


def numbers(bounds: Mapping[str, int]) -> str | None:
    """Numbers within the same bounds; None if there are none."""
    if not bounds:
        return f'"-"? ("0" | [1-9] {_DIGITS}) {_FRACTION} {_POWER}'
    low, high = _open(bounds, "inimum", max), _open(bounds, "aximum", min)
    alternatives = []
    if low is None or low[0] < 0:
        # Numbers below zero, as a minus sign and the mirrored bounds.
        near = (-high[0], high[1]) if high is not None and high[0] < 0 else (0, True)
        alternatives += [f'"-" {rule}' for rule in _between(near, (-low[0], low[1]) if low is not None else None)]
    if high is None or high[0] >= 0:
        alternatives += _between(low if low is not None and low[0] >= 0 else (0, False), high)
    return "(" + " | ".join(alternatives) + ")" if alternatives else None


Bound = tuple[int, bool]
"""A bound, and whether it is excluded."""


def _open(bounds: Mapping[str, int], name: str, tightest: object) -> Bound | None:
    found = []
    if "m" + name in bounds:
        found.append((bounds["m" + name], False))
    if "exclusiveM" + name in bounds:
        found.append((bounds["exclusiveM" + name], True))
    if not found:
        return None
    sign = 1 if tightest is max else -1
    return max(found, key=lambda bound: (sign * bound[0], bound[1]))


def _range(bounds: Mapping[str, int]) -> tuple[int | None, int | None]:
    low, high = _open(bounds, "inimum", max), _open(bounds, "aximum", min)
    return (low and low[0] + low[1]), (high and high[0] - high[1])


def _between(low: Bound, high: Bound | None) -> list[str]:
    """Alternatives for the numbers from ``low``, which is not negative, to ``high``."""
    start, excluded = low
    above = '"." [0-9]{0,13} [1-9]'
    if high is not None and start >= high[0]:
        closed = start == high[0] and not excluded and not high[1]
        return [f'"{start}" ("." "0"{{1,3}})?'] if closed else []
    rules = [f'"{start}" {above}' if excluded else f'"{start}" {_FRACTION}']
    rules += [f"{rule} {_FRACTION}" for rule in _from_to(start + 1, None if high is None else high[0] - 1)]
    if high is not None and not high[1]:
        rules.append(f'"{high[0]}" ("." "0"{{1,3}})?')
    return rules


def _from_to(low: int, high: int | None) -> list[str]:
    """Alternatives for the integers from ``low``, which is not negative, to ``high``."""
    if high is not None and low > high:
        return []
    if high is None:
        n = len(str(low))
        longer = [f"[1-9] [0-9]{{{n},14}}"] if n < 15 else []
        return _from_to(low, 10**n - 1) + longer
    rules = []
    while low <= high:
        # The largest block of numbers with the same leading digits that starts at ``low``.
        n = 0
        while low % 10 ** (n + 1) == 0 and low > 0 and low + 10 ** (n + 1) - 1 <= high:
            n += 1
        block = 10**n
        digit = low // block % 10
        most = digit
        while most < 9 and low + (most + 2 - digit) * block - 1 <= high:
            most += 1
        beginning = str(low // block)[:-1]
        chosen = f"[{digit}-{most}]" if most > digit else f'"{digit}"'
        rules.append(" ".join([*([f'"{beginning}"'] if beginning else []), chosen, *([f"[0-9]{{{n}}}"] if n else [])]))
        low += (most - digit + 1) * block
    return rules


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

_MAX_DEPTH = 50
"""Texts of which each begins with the one before would nest groups too deep."""


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


def any_of(texts: Iterable[str], *, depth: int = 0) -> str:
    """One of some texts, in GBNF.

    What several begin with is written once: llama.cpp follows every alternative, so thousands of them take seconds.
    """
    groups: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        groups.setdefault(text[:1], []).append(text)
    ends = "" in groups
    ways: list[str] = []
    for group in groups.values():
        if len(group) == 1 or depth == _MAX_DEPTH:
            ways += map(literal, filter(None, group))
        else:
            first, last = min(group), max(group)
            shared = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
            ways.append(f"{literal(group[0][:shared])} {any_of([each[shared:] for each in group], depth=depth + 1)}")
    return f"({' | '.join(ways)})" + "?" * ends


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
