"""From a JSON schema to a grammar for what it allows, written on one line.

Values are written as Python's ``json.dumps`` does, with one space after commas and colons and none elsewhere: nothing
lets a model run away in white space, and all that is not a value is forced. Properties come in the order of the
schema. A keyword that the grammar could not keep is refused by name and place rather than passed over.

llama.cpp's own converter is C++ and not part of its library's interface, and its port in llama-cpp-python lets line
breaks into strings and passes bounds over in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from edge_spec.errors import SettingsError
from edge_spec.sampling.number_rules import integers, numbers

__all__ = ["schema_to_gbnf"]

_ANNOTATIONS = frozenset({
    "$schema", "$id", "$comment", "$anchor", "$defs", "definitions", "title", "description", "default", "examples",
    "deprecated", "readOnly", "writeOnly",
})  # fmt: skip
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "boolean": set[str](),
    "null": set[str](),
}
_HEX4 = "[0-9a-fA-F]{4}"
_DATE = '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8])'
_TIME = '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("Z" | [+-] ("0" [0-9] | "1" [0-3]) ":" [0-5] [0-9])'
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": f'{_HEX4}{_HEX4} "-" {_HEX4} "-" {_HEX4} "-" {_HEX4} "-" {_HEX4}{_HEX4}{_HEX4}'.replace("}[", "} ["),
}
"""Dates end on the 28th: grammars do not count the days of a month."""

_SHARED = {
    # Direct characters, but halves of surrogates and what has to be escaped; and the short escapes.
    "char": r'[\x20-\x21\x23-\x5B\x5D-\x7E\u00A0-\uD7FF\uE000-\uFFFC\U00010000-\U0010FFFF] | "\\" ["\\/bfnrt]',
    "string": r'"\"" char* "\""',
    "value": "object | array | string | number | truth | nothing",
    "object": r'"{" (string ": " value (", " string ": " value)*)? "}"',
    "array": '"[" (value (", " value)*)? "]"',
    "number": numbers({}),
    "integer": integers({}),
    "truth": '"true" | "false"',
    "nothing": '"null"',
}
_USES = {
    "string": ("char",), "object": ("string", "value"), "array": ("value",),
    "value": ("object", "array", "string", "number", "truth", "nothing"),
}  # fmt: skip
_MOST = 2000
"""llama.cpp repeats nothing more often."""


def schema_to_gbnf(schema: str | Mapping[str, Any] | bool) -> str:
    """A grammar in GBNF.

    Known are type, enum, const, anyOf, oneOf (where its alternatives cannot overlap), allOf of one, $ref within the
    schema, properties, required, additionalProperties, items, prefixItems, minItems, maxItems, minLength, maxLength,
    format (date, time, date-time, uuid) and whole bounds of numbers. Properties that the schema does not name are
    written only where it names none; then also propertyNames, maxProperties, and minProperties up to 1.

    Raises:
        SettingsError: no JSON, no schema, or a keyword that is not known; with its place.
    """
    parsed: Any = schema
    if isinstance(schema, str):
        try:
            parsed = json.loads(schema)
        except ValueError as error:
            raise SettingsError(f"the JSON schema is no JSON: {error}", hint="correct it there") from None
    return _Converter(parsed).grammar()


def _fail(place: str, what: str, hint: str = "leave it out, or check it after the reply") -> NoReturn:
    raise SettingsError(f"the JSON schema at {place}: {what}", hint=hint)


def _literal(text: str) -> str:
    """A text as GBNF writes it."""
    escaped = "".join(f"\\x{ord(c):02X}" if ord(c) < 32 else "\\" + c if c in '"\\' else c for c in text)
    return f'"{escaped}"'


def _json(value: Any) -> str:
    return _literal(json.dumps(value, ensure_ascii=False))


def _repeat(item: str, least: int, most: int | None) -> str:
    return f"{item}{{{least},{'' if most is None else most}}}"


class _Converter:
    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._rules: dict[str, str] = {}
        self._references: dict[str, str] = {}

    def grammar(self) -> str:
        root = self._rule(self._schema, "#")
        lines = [f"root ::= {root}", *(f"{name} ::= {rule}" for name, rule in self._rules.items())]
        return "\n".join(lines) + "\n"

    def _shared(self, name: str) -> str:
        if name not in self._rules:
            self._rules[name] = _SHARED[name]
            for used in _USES.get(name, ()):
                self._shared(used)
        return name

    def _named(self, rule: str) -> str:
        """The name of a new rule."""
        name = f"r{len(self._rules)}"
        self._rules[name] = rule
        return name

    def _rule(self, schema: Any, place: str) -> str:
        """The right side of a rule, safe to stand among others."""
        if schema is True:
            return self._shared("value")
        if not isinstance(schema, Mapping):
            _fail(place, "no schema" if schema is not False else "false allows nothing", "give an object with keywords")
        known = {keyword: value for keyword, value in schema.items() if keyword not in _ANNOTATIONS}
        for keyword in ("$ref", "const", "enum", "anyOf", "oneOf", "allOf"):
            if keyword in known:
                value = known.pop(keyword)
                # A type beside constants and alternatives says again what they say.
                others = [other for other in known if other != "type" or keyword in ("$ref", "allOf")]
                if others:
                    _fail(f"{place}/{others[0]}", f"{others[0]} beside {keyword} is not supported")
                write = getattr(self, "_" + keyword.strip("$").lower())
                return str(write(value, f"{place}/{keyword}", known.get("type")))
        return self._typed(known, place)

    def _ref(self, reference: Any, place: str, _: Any) -> str:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            _fail(place, f"{reference!r} is not within the schema", "copy what it names into $defs")
        if reference not in self._references:
            target = _found(self._schema, reference)
            if target is None:
                _fail(place, f"{reference!r} does not exist", "correct the reference")
            name = self._references[reference] = self._named("")
            self._rules[name] = self._rule(target, reference)
        return self._references[reference]

    def _const(self, value: Any, place: str, kind: Any) -> str:
        return self._enum([value], place, kind)

    def _enum(self, values: Any, place: str, kind: Any) -> str:
        if not isinstance(values, list) or not values:
            _fail(place, "a list of at least one value is wanted", "name the values")
        fitting = [value for value in values if kind is None or _has_type(value, kind)]
        if not fitting:
            _fail(place, f"no value is of type {kind}", "correct the type")
        return "(" + " | ".join(map(_json, fitting)) + ")"

    def _anyof(self, schemas: Any, place: str, kind: Any) -> str:
        if not isinstance(schemas, list) or not schemas:
            _fail(place, "a list of at least one schema is wanted", "name the alternatives")
        if kind is not None and any(not isinstance(each, Mapping) or each.get("type") != kind for each in schemas):
            _fail(place, "type beside alternatives that do not repeat it is not supported", "give it to each of them")
        return "(" + " | ".join(self._rule(each, f"{place}/{n}") for n, each in enumerate(schemas)) + ")"

    def _oneof(self, schemas: Any, place: str, kind: Any) -> str:
        rule = self._anyof(schemas, place, kind)
        shown = [self._told_by(each) for each in schemas]
        for n, one in enumerate(shown):
            for m, other in enumerate(shown[:n]):
                if not any(not (one[key] & other[key]) for key in one.keys() & other.keys()):
                    _fail(place, f"alternatives {m} and {n} may overlap", "use anyOf, or give them different types")
        return rule

    def _told_by(self, schema: Any) -> dict[str, set[str]]:
        """What tells alternatives apart: their types, and the values of properties that they require."""
        for _ in range(_MOST):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                break
            schema = _found(self._schema, str(schema["$ref"]))
        if not isinstance(schema, Mapping):
            return {}
        told: dict[str, set[str]] = {}
        kinds = schema.get("type")
        if kinds is not None:
            kinds = {kinds} if isinstance(kinds, str) else set(kinds)
            told["type"] = kinds | ({"integer"} if "number" in kinds else set())
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            told["value"] = {json.dumps(value) for value in values}
        for name in schema.get("required", ()):
            fixed = schema.get("properties", {}).get(name, {})
            values = [fixed["const"]] if "const" in fixed else fixed.get("enum")
            if values is not None:
                told["property " + name] = {json.dumps(value) for value in values}
        return told

    def _allof(self, schemas: Any, place: str, _: Any) -> str:
        if not isinstance(schemas, list) or len(schemas) != 1:
            _fail(place, "allOf of more than one schema is not supported", "join them into one")
        return self._rule(schemas[0], f"{place}/0")

    def _typed(self, known: dict[str, Any], place: str) -> str:
        kind = known.pop("type", None)
        if kind is None:
            guesses = ("object", "array", "string", "number")
            kind = next((name for name in guesses if known.keys() & _KEYWORDS[name]), None)
        if kind is None:
            if known:
                _fail(f"{place}/{next(iter(known))}", f"the keyword {next(iter(known))} is not supported")
            return self._shared("value")
        if isinstance(kind, list) and kind:
            # Each alternative gets the keywords that mean something for it.
            stray = known.keys() - {keyword for name in kind for keyword in _KEYWORDS.get(str(name), ())}
            if stray:
                _fail(f"{place}/{min(stray)}", f"the keyword {min(stray)} is not supported")
            alternatives = []
            for each in map(str, kind):
                fitting = {key: value for key, value in known.items() if key in _KEYWORDS.get(each, ())}
                alternatives.append(self._typed({"type": each} | fitting, place))
            return "(" + " | ".join(alternatives) + ")"
        if not isinstance(kind, str) or kind not in _KEYWORDS:
            _fail(f"{place}/type", f"there is no type {kind!r}", f"known are {', '.join(_KEYWORDS)}")
        for keyword in known:
            if keyword not in _KEYWORDS[kind]:
                _fail(f"{place}/{keyword}", f"the keyword {keyword} of type {kind} is not supported")
        return str(getattr(self, "_" + kind)(known, place))

    def _null(self, known: dict[str, Any], place: str) -> str:
        return '"null"'

    def _boolean(self, known: dict[str, Any], place: str) -> str:
        return '("true" | "false")'

    def _integer(self, known: dict[str, Any], place: str) -> str:
        return self._bounded(integers, known, place) if known else self._shared("integer")

    def _number(self, known: dict[str, Any], place: str) -> str:
        return self._bounded(numbers, known, place) if known else self._shared("number")

    def _bounded(self, rules: Any, known: dict[str, Any], place: str) -> str:
        for keyword, bound in known.items():
            whole = isinstance(bound, int | float) and not isinstance(bound, bool) and bound == int(bound)
            if not whole or abs(bound) >= 10**15:
                _fail(f"{place}/{keyword}", f"the bound {bound!r} is not a whole number below 1e15", "round it")
        rule = rules({keyword: int(bound) for keyword, bound in known.items()})
        if rule is None:
            _fail(place, "no number lies within the bounds", "correct minimum and maximum")
        return self._named(rule)

    def _string(self, known: dict[str, Any], place: str) -> str:
        if "format" in known:
            if len(known) > 1:
                _fail(f"{place}/format", "format beside bounds of the length is not supported")
            if known["format"] not in _FORMATS:
                _fail(f"{place}/format", f"there is no format {known['format']!r}", f"known: {', '.join(_FORMATS)}")
            return self._named(rf'"\"" {_FORMATS[known["format"]]} "\""')
        least, most = self._lengths(known, place, "Length")
        if not known:
            return self._shared("string")
        return self._named(rf'"\"" {_repeat(self._shared("char"), least, most)} "\""')

    def _array(self, known: dict[str, Any], place: str) -> str:
        first = known.get("prefixItems", [])
        if not isinstance(first, list):
            _fail(f"{place}/prefixItems", "a list of schemas is wanted", "give one per place")
        least, most = self._lengths(known, place, "Items")
        items = [self._rule(each, f"{place}/prefixItems/{n}") for n, each in enumerate(first)][:most]
        if least < len(items):
            # Of those that may be left out, each needs the one before.
            optional = ""
            for n in range(len(items) - 1, least - 1, -1):
                if n == len(items) - 1:
                    optional = self._more(known, place, 0, None if most is None else most - n - 1)
                comma = '", " ' if n else ""
                optional = f"({comma}{items[n]} {optional})?"
            return self._named('"[" ' + ' ", " '.join(items[:least]) + f' {optional} "]"')
        if items:
            room = None if most is None else most - len(items)
            others = self._more(known, place, least - len(items), room)
            return self._named('"[" ' + ' ", " '.join(items) + f' {others} "]"')
        if most == 0 or known.get("items") is False:
            return '"[]"'
        item = self._rule(known.get("items", True), f"{place}/items")
        others = _repeat(f'(", " {item})', max(least - 1, 0), None if most is None else most - 1)
        rule = f"{item} {others}"
        return self._named(f'"[" {rule} "]"' if least else f'"[" ({rule})? "]"')

    def _more(self, known: dict[str, Any], place: str, least: int, room: int | None) -> str:
        """What follows the items that have their own schemas; nothing unless ``items`` says what."""
        if "items" not in known or known["items"] is False or room == 0:
            if least > 0:
                _fail(f"{place}/minItems", "there are fewer prefixItems, and no items", "say what the others are")
            return ""
        return _repeat(f'(", " {self._rule(known["items"], f"{place}/items")})', least, room)

    def _lengths(self, known: dict[str, Any], place: str, what: str) -> tuple[int, int | None]:
        least, most = known.get("min" + what, 0), known.get("max" + what)
        for name, bound in (("min" + what, least), ("max" + what, most)):
            if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool) or not 0 <= bound <= _MOST):
                _fail(f"{place}/{name}", f"{bound!r} is not a whole number from 0 to {_MOST}", "choose one")
        if most is not None and most < least:
            _fail(f"{place}/max{what}", f"max{what} is less than min{what}", "correct them")
        return least, most

    def _object(self, known: dict[str, Any], place: str) -> str:
        named, required = known.get("properties", {}), known.get("required", [])
        others = known.get("additionalProperties", True)
        if not isinstance(named, Mapping):
            _fail(f"{place}/properties", "an object is wanted", "name the properties")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            _fail(f"{place}/required", "a list of names is wanted", "name the properties")
        properties = {name: (each, f"{place}/properties/{name}") for name, each in named.items()}
        for name in required:
            if name not in properties and others is False:
                _fail(f"{place}/required", f"{name!r} is required and not allowed", "add it to properties")
            properties.setdefault(name, (others, f"{place}/additionalProperties"))
        if not properties:
            if others is False:
                return '"{}"'
            return self._map(known, place, self._rule(others, f"{place}/additionalProperties"))
        for keyword in ("propertyNames", "minProperties", "maxProperties"):
            if keyword in known:
                _fail(f"{place}/{keyword}", f"{keyword} beside named properties is not supported")
        # From the last one back: what may follow where something is written already, and where nothing is.
        after, first = "", ""
        for name, (each, where) in reversed(properties.items()):
            if each is False and name not in required:
                continue
            pair = self._named(f"{_literal(json.dumps(name, ensure_ascii=False) + ': ')} {self._rule(each, where)}")
            if name in required:
                first = f"{pair} {after}"
                after = self._named(f'", " {pair} {after}')
            else:
                first = f"({pair} {after} | {self._named(first)})" if first else f"({pair} {after})?"
                after = self._named(f'(", " {pair})? {after}')
        return self._named(f'"{{" {first} "}}"')


    def _map(self, known: dict[str, Any], place: str, value: str) -> str:
        """An object whose properties have no names of their own."""
        least, most = self._lengths(known, place, "Properties")
        if least > 1:
            _fail(f"{place}/minProperties", "more than 1 is not supported, since names may come twice")
        names = {"type": "string", **known.get("propertyNames", {})}
        pair = self._named(f'{self._rule(names, f"{place}/propertyNames")} ": " {value}')
        if most == 0:
            return '"{}"'
        pairs = f'{pair} {_repeat(f"""(", " {pair})""", 0, None if most is None else most - 1)}'
        return self._named(f'"{{" {pairs} "}}"' if least else f'"{{" ({pairs})? "}}"')

def _found(schema: Any, reference: str) -> Any:
    """What a reference such as ``#/$defs/name`` names; None if there is nothing."""
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping):
            schema = schema.get(name)
        elif isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            return None
    return schema


def _has_type(value: Any, kinds: Any) -> bool:
    types: dict[str, type | tuple[type, ...]] = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
        "null": type(None),
    }  # fmt: skip
    names = kinds if isinstance(kinds, list) else [kinds]
    return any(
        isinstance(value, types.get(name, ())) and (name == "boolean" or not isinstance(value, bool)) for name in names
    )
