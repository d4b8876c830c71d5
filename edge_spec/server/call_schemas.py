"""What schemas of arguments say, and rules of grammars that are made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edge_spec.errors import SettingsError
from edge_spec.sampling.json_schema import ANNOTATIONS
from edge_spec.sampling.lark import literal

__all__ = [
    "KINDS",
    "Rules",
    "Schema",
    "kinds_of",
    "properties",
    "property_of",
    "referred",
    "refused",
    "values_of",
    "with_definitions",
]

Schema = Mapping[str, Any]

KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}
"""The types of values."""


class Rules:
    """Rules of a grammar.

    Args:
        prefix: what their names begin with.

    Attributes:
        prefix: the same.
        text: all of them.
        referred: the expression of each reference; empty while it is being made.
    """

    def __init__(self, prefix: str) -> None:
        self.text = ""
        self.prefix = prefix
        self.referred: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def named(self, expression: str, attributes: str = "") -> str:
        """Return the name of the rule for an expression."""
        key = f"{attributes}: {expression}\n"
        if key not in self._names:
            self._names[key] = f"{self.prefix}r{len(self._names)}"
            self.text += self._names[key] + key
        return self._names[key]

    def until(self, end: str) -> str:
        """Return the name of the rule for a text and its end."""
        return self.named("/(?s:.*)/", f"[suffix={literal(end)}]")

    def members(self, parts: Sequence[tuple[str, bool]], comma: str) -> str:
        """Return an expression of parts in their order; those of which it is not said may be missing."""
        first = after = '""'
        for part, is_required in reversed(parts):
            name = self.named(part)
            more = f"{literal(comma)} {name}" if comma else name
            first = self.named(f"{name} {after}" + ("" if is_required else f" | {first}"))
            after = self.named(f"{more} {after}" if is_required else f"({more})? {after}")
        return first


def refused(what: str) -> SettingsError:
    return SettingsError(what, argument="json_schema", hint="simplify it")


def properties(schema: Schema) -> list[tuple[str, Schema, bool]] | None:
    """Return names, schemas and whether each is required; None if any may be given.

    Raises:
        SettingsError: it says more of them.
    """
    more = schema.keys() - ANNOTATIONS - {"type", "properties", "required", "additionalProperties"}
    if more:
        raise refused(f"{min(more)} of arguments is not kept in this form of calls")
    named, needed, others = schema.get("properties"), schema.get("required", []), schema.get("additionalProperties")
    is_sound = isinstance(named or {}, Mapping) and isinstance(needed, list)
    if not is_sound or not all(isinstance(name, str) and name in (named or {}) for name in needed):
        raise refused("properties or required are not those of a schema")
    if not named and others is not False:
        return None
    if others:
        raise refused("additionalProperties beside properties are not kept in this form of calls")
    return [(name, with_definitions(each, schema), name in needed) for name, each in (named or {}).items()]


def property_of(schema: Schema, name: str) -> Schema:
    """Return the schema of an argument."""
    named = schema.get("properties")
    part = named.get(name) if isinstance(named, Mapping) else None
    return with_definitions(part if part is not None else {}, schema)


def with_definitions(part: Any, whole: Schema) -> Schema:
    """Return a part of a schema that finds what it refers to."""
    if not isinstance(part, Mapping):
        return {} if part is True else {"enum": []}
    refers = '"$ref"' in json.dumps(part)
    return {**{name: whole[name] for name in ("$defs", "definitions") if refers and name in whole}, **part}


def referred(schema: Schema) -> Schema | None:
    """Return what a reference means; None if that is not found."""
    _, _, place = str(schema["$ref"]).partition("#/")
    group, _, name = place.partition("/")
    targets = schema.get(group) if group in ("$defs", "definitions") else None
    target = targets.get(name) if isinstance(targets, Mapping) else None
    return with_definitions(target, schema) if isinstance(target, Mapping) else None


def values_of(schema: Schema) -> list[Any] | None:
    """Return the only values that a schema allows; None if it lists none."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) and values else None


def kinds_of(schema: Schema) -> set[str]:
    """Return the types that a schema allows; none if that is not sure."""
    found: set[str] = set()
    waiting, seen = [schema], set[str]()
    while waiting:
        each = waiting.pop()
        values, kinds, several = values_of(each), each.get("type"), each.get("anyOf", each.get("oneOf"))
        if "$ref" in each:
            target = referred(each)
            if target is None:
                return set()
            waiting += [target] if str(each["$ref"]) not in seen else []
            seen.add(str(each["$ref"]))
        elif values is not None:
            found |= {KINDS.get(type(value), "null") for value in values}
        elif isinstance(kinds, str | list):
            found |= {kinds} if isinstance(kinds, str) else {*map(str, kinds)}
        elif isinstance(several, list):
            waiting += [with_definitions(part, each) for part in several]
        else:
            return set()
    return found
