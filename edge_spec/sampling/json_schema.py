"""Translate a JSON schema into a grammar for the JSON that it allows, on one line.

llguidance reads JSON schemas. What it would read differently or ignore is rewritten, or refused by name and position.
Values are written as by Python's ``json.dumps``, with one space after commas and colons and none elsewhere: a model
cannot write white space without end, and everything but values is forced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

from edge_spec.errors import SettingsError
from edge_spec.foreign import parse_json
from edge_spec.options import is_finite, written
from edge_spec.sampling.lark import Lark
from edge_spec.sampling.patterns import branches_of

__all__ = ["FORMATS", "KEYWORDS", "constraints", "found_in", "json_expression", "schema_to_lark"]

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_ANNOTATIONS = frozenset(("$schema", "$id", "$comment", "$anchor", "$defs", "definitions", "title", "description")) | {
    *("default", "examples", "deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding"),
    *("contentSchema", "$vocabulary", "discriminator", "example", "externalDocs", "nullable", "xml"),
}
"""Keywords without an effect, those of OpenAPI included. OpenAPI's ``nullable`` is ignored."""

_ANYWHERE = frozenset(("$ref", "const", "enum", "anyOf", "oneOf", "allOf", "type"))

_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_COUNTS = frozenset(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"))

_TEXTS = frozenset(("pattern", "format"))

_BY_TYPE = {
    "object": frozenset(("properties", "patternProperties", "required", "additionalProperties", "propertyNames"))
    | {"minProperties", "maxProperties"},
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "number": _BOUNDS,
}
"""Keywords that imply a type where none is given."""

KEYWORDS = frozenset[str]().union(_ANYWHERE, *_BY_TYPE.values())
"""The keywords that are enforced."""

_EXACT = 1 << 53
"""llguidance computes with numbers of 64 bits, which are exact below this."""

_LARGEST, _SMALLEST = 10**15 - 1, 1e-10
"""Bounds of numbers without bounds in the schema, whose digits would have no end."""

_MAX_COUNT = 100_000

_MAX_ALTERNATIVES, _MAX_COMPARED = 1000, 200
"""The most alternatives in a whole schema, and the most of ``oneOf``, which are compared pair by pair."""

_DATE = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-(?:0[1-9]|1[0-9]|2[0-8])"
_TIME = "[0-9]{2}:[0-9]{2}:[0-5][^z]*"
FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""Formats as Python parses them: years from 1, no leap seconds, capitals. Dates end on the 28th, since a grammar
cannot count the days of a February."""


def constraints(schema: Mapping[str, Any]) -> set[str]:
    """Return the keywords of a schema that constrain values, and unknown ones."""
    return {keyword for keyword in schema if keyword not in _ANNOTATIONS and not keyword.startswith("x-")}


def schema_to_lark(schema: str | Mapping[str, Any] | bool) -> Lark:
    """Return a grammar of the JSON that a schema allows.

    Supported are type, enum, const, anyOf, oneOf (where its alternatives cannot overlap), allOf, $ref within the
    schema, properties, patternProperties, required, additionalProperties, propertyNames, minProperties (up to 1),
    maxProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern, format (as llguidance knows
    them), bounds of numbers and multipleOf. An object that names properties has no others, and an array with
    prefixItems no other items, unless the schema says what they are or joins several schemas into one. Numbers have at
    most 15 digits before the point and 10 after it, where the schema does not say which they may be.

    Raises:
        SettingsError: not JSON, not a schema, or an unsupported keyword, with its place.
    """
    return Lark(json_expression(schema), argument="json_schema")


def json_expression(schema: str | Mapping[str, Any] | bool) -> str:
    """Return the grammar of a schema as a part of a grammar in Lark's syntax; see ``schema_to_lark``."""
    try:
        parsed = parse_json(schema if isinstance(schema, str) else json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingsError(f"is not JSON: {error}", argument="json_schema", hint="correct it") from None
    try:
        text = json.dumps(_Rewriter(parsed).rewritten() | {"x-guidance": _SPACING})
    except RecursionError:
        hint = "move parts of it into $defs"
        raise SettingsError("is nested too deep", argument="json_schema", hint=hint) from None
    return f"%json {text}"


def _fail(place: str, what: str, hint: str = "leave it out, or check it after the reply") -> NoReturn:
    raise SettingsError(f"at {place}: {what}", argument="json_schema", hint=hint)


class _Rewriter:
    """Rewrites a schema so that llguidance reads it as meant."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._joins = _joins(schema)
        self._references: dict[str, str] = {}
        self._definitions: dict[str, Any] = {}
        self._n_pairs = self._n_alternatives = 0

    def rewritten(self) -> dict[str, Any]:
        """Return the rewritten schema."""
        if self._schema is False:
            _fail("#", "false allows nothing", "give an object with keywords")
        found = self._of(self._schema, "#")
        return (found if isinstance(found, dict) else {}) | {"$defs": self._definitions}

    def _of(self, schema: Any, place: str) -> dict[str, Any] | bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            _fail(place, "not a schema", "give an object with keywords")
        given = constraints(schema)
        known = {keyword: value for keyword, value in schema.items() if keyword in given}
        if not known.keys() & _ANYWHERE:
            kind = next((name for name, keywords in _BY_TYPE.items() if known.keys() & keywords), None)
            known = ({"type": kind} if kind else {}) | known
        made: dict[str, Any] = {}
        for keyword, value in known.items():
            at = f"{place}/{keyword}"
            if keyword not in KEYWORDS:
                _fail(at, f"the keyword {keyword} is not supported")
            if keyword in _BOUNDS and not (_is_number(value) and abs(value) < _EXACT):
                _fail(at, f"the bound {_shown(value)} is not a number below 2**53", "round it")
            if keyword in _COUNTS and not (type(value) is int and 0 <= value <= _MAX_COUNT):
                _fail(at, f"{_shown(value)} is not a whole number from 0 to {_MAX_COUNT}", "choose one")
            if keyword in _TEXTS and not isinstance(value, str):
                _fail(at, f"{_shown(value)} is not a text", "write it as one")
            write = getattr(self, f"_{keyword.strip('$').lower()}", None)
            made |= write(value, at) if write is not None else {keyword: value}
        if "propertyNames" in known:
            made |= self._named_alike(known, place)
        if not self._joins:
            made = self._closed(made)
        if made.get("additionalProperties") is False and not made.get("patternProperties"):
            stray = [name for name in made.get("required", ()) if name not in made.get("properties", {})]
            if stray and "additionalProperties" in known:
                _fail(f"{place}/required", f"{_shown(stray[0])} is required and not allowed", "add it to properties")
            made |= {"properties": made.get("properties", {}) | dict.fromkeys(stray, True)} if stray else {}
        return made

    def _closed(self, made: dict[str, Any]) -> dict[str, Any]:
        """Return a schema with bounds on everything that a model could write without end, and what it leaves open."""
        if made.get("properties"):
            made = {"additionalProperties": False} | made
        if "prefixItems" in made:
            made = {"items": False} | made
        kinds = made.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if "const" in made or "enum" in made or not {"integer", "number"} & {str(kind) for kind in kinds}:
            return made
        if not max(made.get(name, 0) for name in ("minimum", "exclusiveMinimum")) > _LARGEST:
            made = {"maximum": _LARGEST} | made if "exclusiveMaximum" not in made else made
        if not min(made.get(name, 0) for name in ("maximum", "exclusiveMaximum")) < -_LARGEST:
            made = {"minimum": -_LARGEST} | made if "exclusiveMinimum" not in made else made
        return {"multipleOf": _SMALLEST} | made if "number" in kinds else made

    def _ref(self, reference: Any, place: str) -> dict[str, Any]:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            _fail(place, f"{_shown(reference)} is not within the schema", "copy what it names into $defs")
        if reference not in self._references:
            target = found_in(self._schema, reference)
            if target is None:
                _fail(place, f"{_shown(reference)} does not exist", "correct the reference")
            name = self._references[reference] = f"d{len(self._references)}"
            self._definitions[name] = self._of(target, reference)
        return {"$ref": f"#/$defs/{self._references[reference]}"}

    def _const(self, value: Any, place: str) -> dict[str, Any]:
        _require_exact(value, place)
        return {"const": value}

    def _enum(self, values: Any, place: str) -> dict[str, Any]:
        if not isinstance(values, list) or not values:
            _fail(place, "it must be a list of at least one value", "name the values")
        _require_exact(values, place)
        return {"enum": values}

    def _type(self, kinds: Any, place: str) -> dict[str, Any]:
        if isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds):
            kinds = list(dict.fromkeys(kinds))
        return {"type": kinds}

    def _anyof(self, schemas: Any, place: str) -> dict[str, Any]:
        made = self._all(schemas, place)
        return {"anyOf": list({json.dumps(each): each for each in made}.values())}

    def _allof(self, schemas: Any, place: str) -> dict[str, Any]:
        return {"allOf": self._all(schemas, place)}

    def _oneof(self, schemas: Any, place: str) -> dict[str, Any]:
        made = self._all(schemas, place)
        self._n_pairs += len(schemas) ** 2
        if self._n_pairs > _MAX_COMPARED**2:
            _fail(place, f"more than {_MAX_COMPARED} alternatives are not compared", "use anyOf, or leave some out")
        shown = [self._shown_by(each) for each in schemas]
        for n, one in enumerate(shown):
            for m, other in enumerate(shown[:n]):
                if not any(not (one[key] & other[key]) for key in one.keys() & other.keys()):
                    _fail(place, f"alternatives {m} and {n} may overlap", "use anyOf, or give them different types")
        # Beside another ``anyOf`` both apply.
        return {"allOf": [{"anyOf": made}]} if self._joins else {"anyOf": made}

    def _all(self, schemas: Any, place: str) -> list[Any]:
        if not isinstance(schemas, list) or not schemas:
            _fail(place, "it must be a list of at least one schema", "name the alternatives")
        self._n_alternatives += len(schemas)
        if self._n_alternatives > _MAX_ALTERNATIVES:
            _fail(place, f"more than {_MAX_ALTERNATIVES} alternatives", "leave some out, or use enum")
        return [self._of(each, f"{place}/{n}") for n, each in enumerate(schemas)]

    def _shown_by(self, schema: Any) -> dict[str, set[str]]:
        """Return what distinguishes alternatives: types, and values of required properties."""
        for _ in range(_MAX_ALTERNATIVES):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                break
            schema = found_in(self._schema, str(schema["$ref"]))
        if not isinstance(schema, Mapping):
            return {}
        # The target of the reference may be malformed and has not been checked yet: it distinguishes nothing.
        shown: dict[str, set[str]] = {}
        kinds = schema.get("type")
        kinds = {kinds} if isinstance(kinds, str) else set(map(str, kinds)) if isinstance(kinds, list) else set()
        if kinds:
            shown["type"] = kinds | ({"integer"} if "number" in kinds else set())
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            properties, required = {}, []
        named = {f"property {name}": properties.get(name) for name in required if isinstance(name, str)}
        for key, fixed in {"value": schema, **named}.items():
            if isinstance(fixed, Mapping) and isinstance(fixed.get("enum"), list):
                shown[key] = {json.dumps(value) for value in fixed["enum"]}
            elif isinstance(fixed, Mapping) and "const" in fixed:
                shown[key] = {json.dumps(fixed["const"])}
        return shown

    def _items(self, schema: Any, place: str) -> dict[str, Any]:
        return {"items": self._of(schema, place)}

    def _prefixitems(self, schemas: Any, place: str) -> dict[str, Any]:
        return {"prefixItems": self._all(schemas, place)} if schemas != [] else {}

    def _additionalproperties(self, schema: Any, place: str) -> dict[str, Any]:
        return {"additionalProperties": self._of(schema, place)}

    def _properties(self, named: Any, place: str) -> dict[str, Any]:
        return {"properties": self._each(named, place)}

    def _patternproperties(self, named: Any, place: str) -> dict[str, Any]:
        each = self._each(named, place)
        return {"patternProperties": {_pattern(name, f"{place}/{name}"): schema for name, schema in each.items()}}

    def _each(self, named: Any, place: str) -> dict[str, Any]:
        if not isinstance(named, Mapping):
            _fail(place, "it must be an object", "name the properties")
        return {name: self._of(each, f"{place}/{name}") for name, each in named.items()}

    def _required(self, names: Any, place: str) -> dict[str, Any]:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            _fail(place, "it must be a list of names", "name the properties")
        return {"required": names}

    def _minproperties(self, least: Any, place: str) -> dict[str, Any]:
        if least > 1:
            _fail(place, "more than 1 is not supported, since names may come twice")
        return {"minProperties": least}

    def _pattern(self, pattern: str, place: str) -> dict[str, Any]:
        return {"pattern": _pattern(pattern, place)}

    def _format(self, name: str, place: str) -> dict[str, Any]:
        pattern = FORMATS.get(name)
        return {"format": name} | ({"allOf": [{"type": "string", "pattern": pattern}]} if pattern else {})

    def _propertynames(self, names: Any, place: str) -> dict[str, Any]:
        if not isinstance(names, Mapping):
            _fail(place, "not a schema", "give an object with keywords")
        if names.get("type", "string") != "string":
            _fail(f"{place}/type", "names are strings", "leave it out")
        return {}

    def _named_alike(self, known: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Return what ``propertyNames`` says as a pattern of names."""
        at = f"{place}/propertyNames"
        for keyword in ("properties", "patternProperties", "required"):
            if known.get(keyword):
                _fail(at, f"propertyNames with {keyword} is not supported")
        names = {keyword: value for keyword, value in known["propertyNames"].items() if keyword != "type"}
        if not isinstance(self._of({"type": "string", **names}, at), dict):
            return {}
        values = names.pop("enum", [names.pop("const")] if "const" in names else None)
        least, most = names.pop("minLength", 0), names.pop("maxLength", "")
        pattern = names.pop("pattern", None)
        if names or (values is not None) + (pattern is not None) + ((least, most) != (0, "")) > 1:
            _fail(at, "it is not supported but for lengths, a pattern, or a list of names")
        if values is not None:
            pattern = "^(?:" + "|".join(re.escape(value) for value in values if isinstance(value, str)) + ")$"
        elif pattern is not None:
            pattern = _pattern(pattern, f"{at}/pattern")
        else:
            pattern = f"^(?s:.){{{least},{most}}}$"
        others = self._of(known.get("additionalProperties", True), place)
        return {"patternProperties": {pattern: others}, "additionalProperties": False}


def _pattern(pattern: str, place: str) -> str:
    """Return a pattern in the dialect that llguidance reads."""
    try:
        return "|".join(map(str, branches_of(pattern)))
    except ValueError as error:
        _fail(place, f"the pattern {pattern[:64]!r} has {error}", "write it otherwise")


def _shown(value: Any) -> str:
    """Return a value as the schema has it."""
    # Python refuses to write whole numbers of thousands of digits.
    return written(value) if type(value) is int else json.dumps(value, ensure_ascii=False)[:64]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)


def _require_exact(value: Any, place: str) -> None:
    """Raise if a value has a number that llguidance would write as another one."""
    if isinstance(value, Mapping):
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        _require_exact(each, place)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not _is_number(value):
            _fail(place, "a number in it is infinite, NaN, or too long for JSON", "write a finite number")
        if abs(value) >= _EXACT or (isinstance(value, float) and float(f"{value:.15g}") != value):
            _fail(place, f"{_shown(value)} has more than 15 digits", "round it")


def _joins(schema: Any) -> bool:
    """Return whether several schemas apply to one value, so that one may require what another leaves open."""
    if isinstance(schema, list):
        return any(map(_joins, schema))
    if not isinstance(schema, Mapping):
        return False
    several = schema.get("allOf")
    if isinstance(several, list) and len(several) > 1:
        return True
    applied = schema.keys() & {"$ref", "anyOf", "oneOf", "allOf"}
    beside = constraints(schema) - applied - {"type"}
    return len(applied) > 1 or bool(applied and beside & KEYWORDS) or any(map(_joins, schema.values()))


def found_in(schema: Any, reference: str) -> Any:
    """Return what a reference such as ``#/$defs/name`` points to; None if there is nothing."""
    for part in reference.split("/")[1:]:
        # A reference is an address, where characters may be written as ``%C3%A9``.
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping):
            schema = schema.get(name)
        elif isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            return None
    return schema
