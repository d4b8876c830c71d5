"""What schemas of arguments say, and rules of grammars that are made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from edge_spec.errors import SettingsError
from edge_spec.sampling.json_schema import FORMATS, constraints, found_in, json_expression
from edge_spec.sampling.lark import Lark, literal
from edge_spec.sampling.patterns import branches_of

__all__ = [
    "KINDS",
    "Rules",
    "Schema",
    "alternatives",
    "kinds_of",
    "pattern_of",
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

_WHOLE = ("integer", "number")


_TEXT_KEYWORDS = frozenset(("type", "pattern", "format", "minLength", "maxLength"))


class Rules:
    """Rules of a grammar.

    Args:
        prefix: what their names begin with.
        strict: what cannot be kept is refused; else it is left out.
        check: raises ``SettingsError`` where a grammar cannot be kept: a value that fails it is left out.

    Attributes:
        prefix: the same.
        text: all of them.
        referred: the name of the rule of each reference.
        strict: see above.
        left_out: why what was left out cannot be kept, each reason once.
    """

    def __init__(self, prefix: str, *, strict: bool = True, check: Callable[[Lark], object] | None = None) -> None:
        self.text = ""
        self.prefix = prefix
        self.referred: dict[str, str] = {}
        self.left_out: dict[str, SettingsError] = {}
        self.strict = strict
        self._check = check
        self._names: dict[str, str] = {}

    def named(self, expression: str, attributes: str = "", *, terminal: bool = False) -> str:
        """Return the name of the rule, or the terminal, for an expression."""
        key = f"{attributes}: {expression}\n"
        if key not in self._names:
            name = f"{self.prefix}r{len(self._names)}"
            self._names[key] = name.upper() if terminal else name
            self.text += self._names[key] + key
        return self._names[key]

    def until(self, end: str, terminal: str = "/(?s:.*)/") -> str:
        """Return the name of the rule for a text and its end."""
        return self.named(terminal, f"[suffix={literal(end)}]")

    def string(self, schema: Schema) -> str:
        """Return a terminal for the strings that a schema allows, empty if it allows all of them.

        Raises:
            SettingsError: it says more of them than can be kept.
        """
        more = constraints(schema) - _TEXT_KEYWORDS
        if more:
            raise refused(f"{min(more)} of a string")
        json_expression(schema)
        parts = [_found_in(schema["pattern"])] if "pattern" in schema else []
        if "format" in schema:
            if schema["format"] not in FORMATS:
                raise refused(f"the format {schema['format']}")
            parts.append(_found_in(FORMATS[schema["format"]]))
        if "minLength" in schema or "maxLength" in schema:
            parts.append(f"(?s:.){{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}")
        return self.named(" & ".join(f"/{part}/" for part in parts), terminal=True) if parts else ""

    def kept(self, write: Callable[[Schema, Rules], str], schema: Schema) -> str:
        """Return the expression of a value, or of any value where that cannot be kept."""
        if self._check is not None and not self._keeps(write, schema):
            return write({}, self)
        try:
            return write(schema, self)
        except SettingsError as error:
            if self.strict:
                raise
            self.left_out.setdefault(str(error), error)
            return write({}, self)

    def _keeps(self, write: Callable[[Schema, Rules], str], schema: Schema) -> bool:
        """Return whether a value can be kept; else the reason is remembered."""
        assert self._check is not None
        alone = Rules(self.prefix, strict=False)
        try:
            self._check(Lark(write(schema, alone), alone.text, argument="json_schema"))
        except (SettingsError, RecursionError) as error:
            reason = error if isinstance(error, SettingsError) else refused("parts that are nested so deep")
            self.left_out.setdefault(str(reason), reason)
            return False
        return True

    def named_values(
        self,
        schema: Schema,
        value: Callable[[Schema, Rules], str],
        name: str,
        any_name: str,
        comma: str,
        *,
        is_sorted: bool = False,
    ) -> str:
        """Return an expression of the values that a schema names, those that it does not require left out or not; of
        any where it names none.

        Args:
            value: makes the expression of one.
            name, any_name: what stands before it, with ``%s`` for its name, and as a regular expression.
            is_sorted: by name; else they are in the order of the schema.
        """
        between = f"{literal(comma)} " if comma else ""
        named = properties(schema)
        if named is None:
            part = self.named(f"/{any_name}/ ({self.kept(value, others_of(schema))})")
            return f"({part} ({between}{part})*)?"
        if is_sorted:
            named = sorted(named, key=lambda each: each[0].lower())
        parts = [(f"{literal(name % each)} ({self.kept(value, part)})", needed) for each, part, needed in named]
        first = after = '""'
        for part, is_required in reversed(parts):
            rule = self.named(part)
            more = between + rule
            first = self.named(f"{rule} {after}" + ("" if is_required else f" | {first}"))
            after = self.named(f"{more} {after}" if is_required else f"({more})? {after}")
        return first


def pattern_of(text: str) -> str:
    """Return a text as a part of a regular expression of llguidance."""
    return re.sub(r"(?=[!-~])([^\w<>\"=:])", r"\\\1", text).replace("\n", "\\n")


def _found_in(pattern: str) -> str:
    """Return a regular expression of texts in which a schema's pattern is found, without anchors."""
    ways = []
    for each in branches_of(pattern):
        if each.is_anchored:
            raise refused(f"anchors within the pattern {pattern[:64]!r}")
        before, after = "" if each.begins else "(?s:.*)", "" if each.ends else "(?s:.*)"
        ways.append(f"{before}({each.text}){after}")
    return f"({'|'.join(ways)})"


def refused(what: str) -> SettingsError:
    return SettingsError(f"cannot be kept in this form of calls: {what}", argument="json_schema", hint="simplify it")


def properties(schema: Schema) -> list[tuple[str, Schema, bool]] | None:
    """Return names, schemas and whether each is required; None if any may be given.

    Raises:
        SettingsError: it says more of them.
    """
    more = constraints(schema) - {"type", "properties", "required", "additionalProperties"}
    if more:
        raise refused(f"{min(more)} of arguments")
    named, needed, others = schema.get("properties"), schema.get("required", []), schema.get("additionalProperties")
    is_sound = isinstance(named or {}, Mapping) and isinstance(needed, list)
    if not is_sound or not all(isinstance(name, str) and name in (named or {}) for name in needed):
        raise refused("properties or required that are not those of a schema")
    if not named and others is not False:
        return None
    if named and others:
        raise refused("additionalProperties beside properties")
    return [(name, with_definitions(each, schema), name in needed) for name, each in (named or {}).items()]


def others_of(schema: Schema) -> Schema:
    """Return the schema of properties that are not named."""
    return with_definitions(schema.get("additionalProperties", True), schema)


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
    target = found_in(schema, str(schema["$ref"]))
    return with_definitions(target, schema) if isinstance(target, Mapping) else None


def alternatives(schema: Schema) -> list[Schema]:
    """Return the schemas of one type each that a schema is made of.

    Raises:
        SettingsError: it says more than that.
    """
    found: list[Schema] = []
    waiting, seen = [schema], set[str]()
    while waiting:
        each = waiting.pop()
        given, kinds = constraints(each), each.get("type")
        several = each.get(min(given)) if given in ({"anyOf"}, {"oneOf"}, {"allOf"}) else None
        if given == {"$ref"}:
            target = referred(each)
            if target is None:
                raise refused(f"the reference {each['$ref']}")
            waiting += [target] if str(each["$ref"]) not in seen else []
            seen.add(str(each["$ref"]))
        elif isinstance(several, list) and several and (len(several) == 1 or given != {"allOf"}):
            waiting += [with_definitions(part, each) for part in reversed(several)]
        elif given & {"$ref", "anyOf", "oneOf", "allOf"}:
            raise refused(f"{min(given)} beside others")
        elif isinstance(kinds, list) and kinds:
            waiting += [{**each, "type": kind} for kind in reversed(_distinct(kinds))]
        elif isinstance(kinds, str | None):
            found.append(each)
        else:
            raise refused("a type that is not one of a schema")
    return found


def _distinct(kinds: list[Any]) -> list[Any]:
    return list(dict.fromkeys(kinds)) if all(isinstance(kind, str) for kind in kinds) else kinds


def values_of(schema: Schema) -> list[Any] | None:
    """Return the only values that a schema allows; None if it lists none."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not values:
        return None
    kinds = schema.get("type")
    if not isinstance(kinds, str):
        return values
    return [value for value in values if (kind := KINDS.get(type(value), "null")) == kinds or (kind, kinds) == _WHOLE]


def kinds_of(schema: Schema) -> set[str]:
    """Return the types that a schema allows; none if that is not sure."""
    found: set[str] = set()
    waiting, seen = [schema], set[str]()
    while waiting:
        each = waiting.pop()
        values, kinds, several = (
            values_of(each),
            each.get("type"),
            each.get("anyOf", each.get("oneOf", each.get("allOf"))),
        )
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
