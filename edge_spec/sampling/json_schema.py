"""From a JSON schema to a grammar for the JSON that it allows, on one line.

Values are written as by Python's ``json.dumps``, with one space after commas and colons and none elsewhere: a model
cannot write white space without end, and everything but values is forced. Properties come in the order of the schema.
A keyword that the grammar cannot enforce is refused by name and place instead of being ignored.

llama.cpp's own converter is C++ and not part of its library's interface, and its port in llama-cpp-python allows line
breaks in strings and ignores bounds silently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edge_spec.errors import SettingsError
from edge_spec.sampling.gbnf import check_gbnf
from edge_spec.sampling.schema_rules import MAX_REPEATS, Rules, any_of, fail
from edge_spec.sampling.schema_types import KEYWORDS, Types

__all__ = ["schema_to_gbnf"]

_ANNOTATIONS = frozenset(
    {
        "$schema",
        "$id",
        "$comment",
        "$anchor",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
    }
)


def schema_to_gbnf(schema: str | Mapping[str, Any] | bool, *, max_chars: int | None = None) -> str:
    """A grammar in GBNF.

    Supported are type, enum, const, anyOf, oneOf (where its alternatives cannot overlap), allOf of one, $ref within
    the schema, properties, required, additionalProperties, items, prefixItems, minItems, maxItems, minLength,
    maxLength, format (date, time, date-time, uuid) and bounds of numbers that are integers. Properties that the schema
    does not name are written only where it names none; then also propertyNames, maxProperties, and minProperties up
    to 1.

    Args:
        max_chars: the longest grammar.

    Raises:
        SettingsError: not JSON, not a schema, or an unsupported keyword, with its place; or the grammar is too long.
    """
    parsed: Any = schema
    if isinstance(schema, str):
        try:
            parsed = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"is not JSON: {error}", argument="json_schema", hint="correct it") from None
    try:
        grammar = _Converter(parsed).grammar()
    except RecursionError:
        hint = "move parts of it into $defs"
        raise SettingsError("is nested too deep", argument="json_schema", hint=hint) from None
    if max_chars is not None and len(grammar) > max_chars:
        problem = f"becomes a grammar of {len(grammar)} characters, and at most {max_chars} are read"
        raise SettingsError(problem, argument="json_schema", hint="simplify the schema")
    try:
        check_gbnf(grammar)
    except SettingsError as error:
        problem = f"becomes a grammar that {error.problem}"
        raise SettingsError(problem, argument="json_schema", hint="change the schema") from None
    return grammar


class _Converter:
    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._rules = Rules()
        self._types = Types(self._rules, self._rule)
        self._references: dict[str, str] = {}

    def grammar(self) -> str:
        return self._rules.grammar(self._rule(self._schema, "#"))

    def _rule(self, schema: Any, place: str) -> str:
        """The right side of a rule, which can be part of another one."""
        if schema is True:
            return self._rules.shared("value")
        if not isinstance(schema, Mapping):
            fail(
                place, "not a schema" if schema is not False else "false allows nothing", "give an object with keywords"
            )
        known = {keyword: value for keyword, value in schema.items() if keyword not in _ANNOTATIONS}
        for keyword in ("$ref", "const", "enum", "anyOf", "oneOf", "allOf"):
            if keyword in known:
                value = known.pop(keyword)
                # Beside constants and alternatives, a type only repeats what they say.
                others = [other for other in known if other != "type" or keyword in ("$ref", "allOf")]
                if others:
                    fail(f"{place}/{others[0]}", f"{others[0]} with {keyword} is not supported")
                write = getattr(self, "_" + keyword.strip("$").lower())
                return str(write(value, f"{place}/{keyword}", known.get("type")))
        return self._typed(known, place)

    def _ref(self, reference: Any, place: str, _: Any) -> str:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            fail(place, f"{reference!r} is not within the schema", "copy what it names into $defs")
        if reference not in self._references:
            target = _found(self._schema, reference)
            if target is None:
                fail(place, f"{reference!r} does not exist", "correct the reference")
            name = self._references[reference] = self._rules.reserve()
            self._rules.write(name, self._rule(target, reference))
        return self._references[reference]

    def _const(self, value: Any, place: str, kind: Any) -> str:
        return self._enum([value], place, kind)

    def _enum(self, values: Any, place: str, kind: Any) -> str:
        if not isinstance(values, list) or not values:
            fail(place, "it must be a list of at least one value", "name the values")
        fitting = [value for value in values if kind is None or _has_type(value, kind)]
        if not fitting:
            fail(place, f"no value is of type {kind}", "correct the type")
        try:
            return any_of([json.dumps(value, ensure_ascii=False, allow_nan=False) for value in fitting])
        except ValueError:
            fail(place, "a number in it is infinite, no number, or too long for JSON", "write a finite number")

    def _anyof(self, schemas: Any, place: str, kind: Any) -> str:
        if not isinstance(schemas, list) or not schemas:
            fail(place, "it must be a list of at least one schema", "name the alternatives")
        if kind is not None and any(not isinstance(each, Mapping) or each.get("type") != kind for each in schemas):
            fail(place, "type with alternatives that do not repeat it is not supported", "give it to each of them")
        return "(" + " | ".join(self._rule(each, f"{place}/{n}") for n, each in enumerate(schemas)) + ")"

    def _oneof(self, schemas: Any, place: str, kind: Any) -> str:
        rule = self._anyof(schemas, place, kind)
        shown = [self._shown_by(each) for each in schemas]
        for n, one in enumerate(shown):
            for m, other in enumerate(shown[:n]):
                if not any(not (one[key] & other[key]) for key in one.keys() & other.keys()):
                    fail(place, f"alternatives {m} and {n} may overlap", "use anyOf, or give them different types")
        return rule

    def _shown_by(self, schema: Any) -> dict[str, set[str]]:
        """What distinguishes alternatives: their types, and the values of properties that they require."""
        for _ in range(MAX_REPEATS):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                break
            schema = _found(self._schema, str(schema["$ref"]))
        if not isinstance(schema, Mapping):
            return {}
        shown: dict[str, set[str]] = {}
        kinds = schema.get("type")
        if kinds is not None:
            kinds = {kinds} if isinstance(kinds, str) else set(kinds)
            shown["type"] = kinds | ({"integer"} if "number" in kinds else set())
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            shown["value"] = {json.dumps(value) for value in values}
        for name in schema.get("required", ()):
            fixed = schema.get("properties", {}).get(name)
            if not isinstance(fixed, Mapping):
                continue
            values = [fixed["const"]] if "const" in fixed else fixed.get("enum")
            if values is not None:
                shown["property " + name] = {json.dumps(value) for value in values}
        return shown

    def _allof(self, schemas: Any, place: str, _: Any) -> str:
        if not isinstance(schemas, list) or len(schemas) != 1:
            fail(place, "allOf of more than one schema is not supported", "join them into one")
        return self._rule(schemas[0], f"{place}/0")

    def _typed(self, known: dict[str, Any], place: str) -> str:
        kind = known.pop("type", None)
        if kind is None:
            guesses = ("object", "array", "string", "number")
            kind = next((name for name in guesses if known.keys() & KEYWORDS[name]), None)
        if kind is None:
            if known:
                fail(f"{place}/{next(iter(known))}", f"the keyword {next(iter(known))} is not supported")
            return self._rules.shared("value")
        if isinstance(kind, list) and kind:
            # Each alternative gets the keywords of its type.
            stray = known.keys() - {keyword for name in kind for keyword in KEYWORDS.get(str(name), ())}
            if stray:
                fail(f"{place}/{min(stray)}", f"the keyword {min(stray)} is not supported")
            alternatives = []
            for each in map(str, kind):
                fitting = {key: value for key, value in known.items() if key in KEYWORDS.get(each, ())}
                alternatives.append(self._typed({"type": each} | fitting, place))
            return "(" + " | ".join(alternatives) + ")"
        if not isinstance(kind, str) or kind not in KEYWORDS:
            fail(f"{place}/type", f"there is no type {kind!r}", f"known are {', '.join(KEYWORDS)}")
        for keyword in known:
            if keyword not in KEYWORDS[kind]:
                fail(f"{place}/{keyword}", f"the keyword {keyword} of type {kind} is not supported")
        return str(getattr(self._types, kind)(known, place))


def _found(schema: Any, reference: str) -> Any:
    """What a reference such as ``#/$defs/name`` points to; None if there is nothing."""
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
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    names = [str(name) for name in (kinds if isinstance(kinds, list) else [kinds])]
    return any(
        isinstance(value, types.get(name, ())) and (name == "boolean" or not isinstance(value, bool)) for name in names
    )
