"""What the types of a JSON schema allow, as rules of a grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from edge_spec.sampling.schema_rules import FORMATS, MAX_REPEATS, Rules, fail, integers, literal, numbers, repeat

__all__ = ["KEYWORDS", "Types"]

KEYWORDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "object": frozenset(
            {"properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties"}
        ),
        "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
        "string": frozenset({"minLength", "maxLength", "format"}),
        "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
        "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
        "boolean": frozenset(),
        "null": frozenset(),
    }
)
"""The supported keywords of each type; others are refused."""


class Types:
    """Rules for the values of each type; the methods are named after the types.

    Args:
        rules: new rules are added here.
        of: returns the right side of the rule for an inner schema, from that and its place.
    """

    def __init__(self, rules: Rules, of: Callable[[Any, str], str]) -> None:
        self._rules = rules
        self._of = of

    def null(self, known: dict[str, Any], place: str) -> str:
        """Only null."""
        return '"null"'

    def boolean(self, known: dict[str, Any], place: str) -> str:
        """True or false."""
        return '("true" | "false")'

    def integer(self, known: dict[str, Any], place: str) -> str:
        """An integer, perhaps within bounds."""
        return self._bounded(integers, known, place) if known else self._rules.shared("integer")

    def number(self, known: dict[str, Any], place: str) -> str:
        """A number, perhaps within integer bounds."""
        return self._bounded(numbers, known, place) if known else self._rules.shared("number")

    def _bounded(self, rules: Any, known: dict[str, Any], place: str) -> str:
        for keyword, bound in known.items():
            number = isinstance(bound, int | float) and not isinstance(bound, bool)
            if not number or not abs(bound) < 10**15 or bound != int(bound):
                fail(f"{place}/{keyword}", f"the bound {bound!r} is not a whole number below 1e15", "round it")
        rule = rules({keyword: int(bound) for keyword, bound in known.items()})
        if rule is None:
            fail(place, "no number lies within the bounds", "correct minimum and maximum")
        return self._rules.named(rule)

    def string(self, known: dict[str, Any], place: str) -> str:
        """A text, perhaps of some format or length."""
        if "format" in known:
            if len(known) > 1:
                fail(f"{place}/format", "format with bounds of the length is not supported")
            if not isinstance(known["format"], str) or known["format"] not in FORMATS:
                fail(f"{place}/format", f"there is no format {known['format']!r}", f"known: {', '.join(FORMATS)}")
            return self._rules.named(rf'"\"" {FORMATS[known["format"]]} "\""')
        least, most = self._lengths(known, place, "Length")
        if not known:
            return self._rules.shared("string")
        return self._rules.named(rf'"\"" {repeat(self._rules.shared("char"), least, most)} "\""')

    def array(self, known: dict[str, Any], place: str) -> str:
        """Items, the first ones perhaps with their own schemas."""
        first = known.get("prefixItems", [])
        if not isinstance(first, list):
            fail(f"{place}/prefixItems", "it must be a list of schemas", "give one per place")
        least, most = self._lengths(known, place, "Items")
        items = [self._of(each, f"{place}/prefixItems/{n}") for n, each in enumerate(first)][:most]
        if least < len(items):
            # Of the optional items, each requires the one before.
            optional = ""
            for n in range(len(items) - 1, least - 1, -1):
                if n == len(items) - 1:
                    optional = self._more(known, place, 0, None if most is None else most - n - 1)
                comma = '", " ' if n else ""
                optional = f"({comma}{items[n]} {optional})?"
            return self._rules.named('"[" ' + ' ", " '.join(items[:least]) + f' {optional} "]"')
        if items:
            room = None if most is None else most - len(items)
            others = self._more(known, place, least - len(items), room)
            return self._rules.named('"[" ' + ' ", " '.join(items) + f' {others} "]"')
        if most == 0 or known.get("items") is False:
            return '"[]"'
        item = self._of(known.get("items", True), f"{place}/items")
        others = repeat(f'(", " {item})', max(least - 1, 0), None if most is None else most - 1)
        rule = f"{item} {others}"
        return self._rules.named(f'"[" {rule} "]"' if least else f'"[" ({rule})? "]"')

    def _more(self, known: dict[str, Any], place: str, least: int, room: int | None) -> str:
        """What follows the items with their own schemas; nothing without ``items``."""
        if "items" not in known or known["items"] is False or room == 0:
            if least > 0:
                fail(f"{place}/minItems", "there are fewer prefixItems, and no items", "say what the others are")
            return ""
        return repeat(f'(", " {self._of(known["items"], f"{place}/items")})', least, room)

    def _lengths(self, known: dict[str, Any], place: str, what: str) -> tuple[int, int | None]:
        least, most = known.get("min" + what, 0), known.get("max" + what)
        for name, bound in (("min" + what, least), ("max" + what, 0 if most is None else most)):
            if not isinstance(bound, int) or isinstance(bound, bool) or not 0 <= bound <= MAX_REPEATS:
                fail(f"{place}/{name}", f"{bound!r} is not a whole number from 0 to {MAX_REPEATS}", "choose one")
        if most is not None and most < least:
            fail(f"{place}/max{what}", f"max{what} is less than min{what}", "correct them")
        return least, most

    def object(self, known: dict[str, Any], place: str) -> str:
        """The named properties in the order of the schema, or any properties if none is named."""
        named, required = known.get("properties", {}), known.get("required", [])
        others = known.get("additionalProperties", True)
        if not isinstance(named, Mapping):
            fail(f"{place}/properties", "it must be an object", "name the properties")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            fail(f"{place}/required", "it must be a list of names", "name the properties")
        properties = {name: (each, f"{place}/properties/{name}") for name, each in named.items()}
        for name in required:
            if name not in properties and others is False:
                fail(f"{place}/required", f"{name!r} is required and not allowed", "add it to properties")
            properties.setdefault(name, (others, f"{place}/additionalProperties"))
        if not properties:
            if others is False:
                return '"{}"'
            return self._map(known, place, self._of(others, f"{place}/additionalProperties"))
        for keyword in ("propertyNames", "minProperties", "maxProperties"):
            if keyword in known:
                fail(f"{place}/{keyword}", f"{keyword} with named properties is not supported")
        # Backwards: what may follow after a property was written, and where it would be the first.
        after, first = "", ""
        for name, (each, where) in reversed(properties.items()):
            if each is False and name not in required:
                continue
            pair = self._rules.named(f"{literal(json.dumps(name, ensure_ascii=False) + ': ')} {self._of(each, where)}")
            if name in required:
                first = f"{pair} {after}"
                after = self._rules.named(f'", " {pair} {after}')
            else:
                first = f"({pair} {after} | {self._rules.named(first)})" if first else f"({pair} {after})?"
                after = self._rules.named(f'(", " {pair})? {after}')
        return self._rules.named(f'"{{" {first} "}}"')

    def _map(self, known: dict[str, Any], place: str, value: str) -> str:
        """An object whose properties the schema does not name."""
        least, most = self._lengths(known, place, "Properties")
        if least > 1:
            fail(f"{place}/minProperties", "more than 1 is not supported, since names may come twice")
        names = known.get("propertyNames", {})
        if not isinstance(names, Mapping):
            fail(f"{place}/propertyNames", "not a schema", "give an object with keywords")
        if names.get("type", "string") != "string":
            fail(f"{place}/propertyNames/type", "names are strings", "leave it out")
        names = {"type": "string", **names}
        pair = self._rules.named(f'{self._of(names, f"{place}/propertyNames")} ": " {value}')
        if most == 0:
            return '"{}"'
        pairs = f'{pair} {repeat(f"""(", " {pair})""", 0, None if most is None else most - 1)}'
        return self._rules.named(f'"{{" {pairs} "}}"' if least else f'"{{" ({pairs})? "}}"')
