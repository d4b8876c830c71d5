"""Arguments of calls as families write them: read as JSON while they stream in, and allowed by a grammar."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge_spec.errors import SettingsError
from edge_spec.foreign import parse_json
from edge_spec.generation.piece_reader import PieceReader, Waiting
from edge_spec.sampling.json_schema import ANNOTATIONS, json_expression
from edge_spec.sampling.lark import literal

__all__ = ["BARE", "JSON", "PYTHON", "TAGGED", "Arguments", "Rules"]

Schema = Mapping[str, Any]
Put = Callable[[str], object]
"""Takes the next piece of the arguments in JSON."""

_SPELLED = {"true": "True", "false": "False", "null": "None"}
_WORDS = {word: value for value, word in _SPELLED.items()}
_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}


class Rules:
    """Rules of a grammar.

    Args:
        prefix: what their names begin with.

    Attributes:
        prefix: the same.
        text: all of them.
    """

    def __init__(self, prefix: str) -> None:
        self.text = ""
        self.prefix = prefix
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


class Arguments(ABC):
    """How a family writes the arguments of a call."""

    @abstractmethod
    def read(self, text: PieceReader[Any], schema: Schema, put: Put) -> Waiting[None]:
        """Read them off the beginning of a text."""

    @abstractmethod
    def grammar(self, schema: Schema, rules: Rules) -> str:
        """Return an expression of those that a schema allows.

        Raises:
            SettingsError: it cannot be kept.
        """

    def written(self, values: Mapping[str, Any]) -> str:
        """Return them as the model writes them, for templates that do not."""
        return json.dumps(values, ensure_ascii=False)


class _Json(Arguments):
    def read(self, text: PieceReader[Any], schema: Schema, put: Put) -> Waiting[None]:
        depth, in_string, is_escaped = 0, False, False
        while (yield from text.some()):
            if not depth:
                text.held = text.held.lstrip()
            for place, char in enumerate(text.held):
                if in_string:
                    in_string = is_escaped or char != '"'
                    is_escaped = not is_escaped and char == "\\"
                elif char == '"':
                    in_string = True
                else:
                    depth += (char in "{[") - (char in "}]")
                    if not depth:
                        put(text.held[: place + 1])
                        text.held = text.held[place + 1 :]
                        return
            put(text.held)
            text.held = ""

    def grammar(self, schema: Schema, rules: Rules) -> str:
        return json_expression(schema)


class _Spelled(Arguments):
    """Values as JSON has them, spelled otherwise: names without quotes, strings in quotes of their own."""

    quotes: tuple[str, ...]

    def read(self, text: PieceReader[Any], schema: Schema, put: Put) -> Waiting[None]:
        closing: list[str] = []
        while (yield from text.some()):
            found = yield from text.next_of(*"{([", *"})]", *",:=", *self.quotes)
            if not found:
                put((yield from _word(text)))
            elif found in self.quotes:
                put('"')
                yield from self._string(text, found, put)
            elif found in "{([":
                closing.append("]" if found == "[" else "}")
                put("[" if found == "[" else "{")
            elif found in "})]":
                put(closing.pop() if closing else "")
                if not closing:
                    return
            else:
                put(", " if found == "," else ": ")

    def _string(self, text: PieceReader[Any], quote: str, put: Put) -> Waiting[None]:
        """Read a string behind its first quote."""
        if (yield from text.until(lambda piece: put(_escaped(piece)), quote)):
            put('"')


class _Python(_Spelled):
    """Keyword arguments: LFM2."""

    quotes = ('"', "'")

    def _string(self, text: PieceReader[Any], quote: str, put: Put) -> Waiting[None]:
        while (yield from text.until(lambda piece: put(_escaped(piece)), "\\", quote, keep=True)):
            if text.held[0] == quote:
                text.held = text.held[1:]
                put('"')
                return
            while len(text.held) < (6 if text.held[1:2] == "u" else 2):
                if text.has_ended:
                    text.held = ""
                    return
                yield
            n = 6 if text.held[1] == "u" else 2
            escape, text.held = text.held[:n], text.held[n:]
            # JSON has the same ones but for this, and what is none stands for itself.
            if escape[1] not in '"\\/bfnrtu':
                escape = _escaped("'" if escape[1] == "'" else escape)
            put(escape)

    def grammar(self, schema: Schema, rules: Rules) -> str:
        named = _properties(schema)
        if named is None:
            any_part = rules.named(rf"/[A-Za-z_][A-Za-z0-9_]*=/ ({self._value({})})")
            return f'"(" ({any_part} (", " {any_part})*)? ")"'
        parts = [(f"{literal(f'{name}=')} ({self._value(part)})", is_needed) for name, part, is_needed in named]
        return f'"(" {rules.members(parts, ", ")} ")"'

    def _value(self, schema: Schema) -> str:
        """Return an expression of a value: in JSON, which Python reads but for three words, or as Python has it."""
        kinds, ways = _kinds(schema), [json_expression(schema)]
        ways += ['"True"', '"False"'] if not kinds or "boolean" in kinds else []
        ways += ['"None"'] if not kinds or "null" in kinds else []
        values = _values(schema)
        if values is not None:
            plain = [value for value in values if isinstance(value, str) and not {*value} & {*"'\\\n\r"}]
            ways = [ways[0], *(literal(f"'{value}'") for value in plain)]
        elif kinds == {"string"} and not schema.keys() - ANNOTATIONS - {"type"}:
            ways.append(r"/'([^'\\\r\n]|\\[\\'nrt])*'/")
        return " | ".join(ways)

    def written(self, values: Mapping[str, Any]) -> str:
        spelled = ((name, json.dumps(value, ensure_ascii=False)) for name, value in values.items())
        return "(" + ", ".join(f"{name}={_SPELLED.get(text, text)}" for name, text in spelled) + ")"


class _Bare(_Spelled):
    """An object whose names have no quotes, with strings between ``<|"|>``: Gemma 4."""

    quotes = ('<|"|>',)

    def grammar(self, schema: Schema, rules: Rules) -> str:
        return self._object(schema, rules, ())

    def _object(self, schema: Schema, rules: Rules, within: Sequence[str]) -> str:
        named = _properties(schema)
        if named is None:
            return self._any(rules, is_object=True)
        # As the template writes them.
        named = sorted(named, key=lambda each: each[0].lower())
        parts = [(f"{literal(f'{name}:')} {self._value(part, rules, within)}", needed) for name, part, needed in named]
        return rules.named(f'"{{" {rules.members(parts, ",")} "}}"')

    def _value(self, schema: Schema, rules: Rules, within: Sequence[str]) -> str:
        schema, within = _referred(schema, within)
        given = schema.keys() - ANNOTATIONS
        values, kinds = _values(schema), schema.get("type")
        several = schema.get("anyOf", schema.get("oneOf"))
        if not given:
            return self._any(rules)
        if values is not None:
            return rules.named(" | ".join(literal(self._spelled(value)) for value in values))
        if several and given <= {"anyOf", "oneOf"}:
            parts = [_with_definitions(each, schema) for each in several]
            return rules.named(" | ".join(self._value(part, rules, within) for part in parts))
        if isinstance(kinds, list) and kinds:
            return rules.named(" | ".join(self._value({**schema, "type": kind}, rules, within) for kind in kinds))
        if kinds == "object":
            return self._object(schema, rules, within)
        if kinds == "string" and given == {"type"}:
            return f"{literal(self.quotes[0])} {rules.until(self.quotes[0])}"
        if kinds == "array" and given <= {"type", "items"}:
            item = self._value(_with_definitions(schema.get("items", {}), schema), rules, within)
            return rules.named(f'"[" ({item} ("," {item})*)? "]"')
        if kinds in ("integer", "number", "boolean", "null"):
            return rules.named(json_expression(schema))
        raise _refused("it allows what this form of calls cannot be held to")

    def _any(self, rules: Rules, *, is_object: bool = False) -> str:
        """Return the name of a rule for any value, or any object."""
        value = f"{rules.prefix}any"
        members = f"/[A-Za-z0-9_$.-]+:/ {value}"
        whole = rules.named(f'"{{" ({members} ("," {members})*)? "}}"')
        if f"\n{value}: " not in f"\n{rules.text}":
            plain = json_expression({"type": ["number", "boolean", "null"]})
            string = f"{literal(self.quotes[0])} {rules.until(self.quotes[0])}"
            rules.text += f'{value}: {string} | {whole} | "[" ({value} ("," {value})*)? "]" | {plain}\n'
        return whole if is_object else value

    def _spelled(self, value: Any) -> str:
        if isinstance(value, str):
            return self.quotes[0] + value + self.quotes[0]
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{name}:{self._spelled(value[name])}" for name in sorted(value, key=str.lower)) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self._spelled, value)) + "]"
        return json.dumps(value)


class _Tagged(Arguments):
    """An element for each argument, strings without quotes: Qwen 3.5."""

    _end = "\n</parameter>"

    def read(self, text: PieceReader[Any], schema: Schema, put: Put) -> Waiting[None]:
        put("{")
        is_first = True
        while (tag := (yield from text.next_of("<parameter=", "</function>"))) == "<parameter=":
            name: list[str] = []
            if not (yield from text.until(name.append, ">")):
                return
            key = "".join(name)
            put(("" if is_first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            is_first = False
            yield from text.some()
            text.held = text.held.removeprefix("\n")
            kinds = _kinds(_property(schema, key))
            if kinds == {"string"}:
                put('"')
                if not (yield from text.until(lambda piece: put(_escaped(piece)), self._end)):
                    return
                put('"')
            else:
                value: list[str] = []
                if not (yield from text.until(value.append, self._end)):
                    return
                put(_json_of("".join(value), kinds))
        put("}" if tag else "")

    def grammar(self, schema: Schema, rules: Rules) -> str:
        named = _properties(schema)
        if named is None:
            any_part = rules.named(rf"/<parameter=[^>\n]+>\n/ {rules.until(self._end + chr(10))}")
            return f'{any_part}* "</function>"'
        parts = [
            (f"{literal(f'<parameter={name}>{chr(10)}')} ({self._value(part, rules)})", is_needed)
            for name, part, is_needed in named
        ]
        return f'{rules.members(parts, "")} "</function>"'

    def _value(self, schema: Schema, rules: Rules) -> str:
        """Return an expression of a value and its end."""
        end, kinds, values = self._end + "\n", _kinds(schema), _values(schema)
        if values is not None and kinds == {"string"}:
            return " | ".join(literal(value + end) for value in values)
        if not kinds or "string" in kinds:
            if kinds == {"string"} and schema.keys() - ANNOTATIONS - {"type", "$ref", "anyOf", "oneOf"}:
                raise _refused("a string is held to nothing but a list of values in this form of calls")
            return rules.until(end)
        ways = [json_expression(schema)]
        ways += ['"True"', '"False"'] if "boolean" in kinds and values is None else []
        ways += ['"None"'] if "null" in kinds else []
        return f"({' | '.join(ways)}) {literal(end)}"


JSON, PYTHON, BARE, TAGGED = _Json(), _Python(), _Bare(), _Tagged()


def _word(text: PieceReader[Any]) -> Waiting[str]:
    """Read a name, a number, or what stands for true, false and null; returns it in JSON."""
    while True:
        word = re.split(r"[\s,:=(){}\[\]]", text.held, maxsplit=1)[0]
        rest = text.held[len(word) :].lstrip()
        if rest:
            break
        if text.has_ended:
            text.held = ""
            return ""
        yield
    text.held = rest
    return json.dumps(word, ensure_ascii=False) if rest[0] in ":=" else _json_of(word, set())


def _json_of(text: str, kinds: set[str]) -> str:
    """Return the JSON of a value that is written without quotes, of one of some kinds; of any if there are none."""
    word = _WORDS.get(text.strip(), text.strip())
    try:
        kind = _KINDS.get(type(parse_json(word)), "null")
    except ValueError:
        kind = "string"
    if kind == "string" or not (not kinds or kind in kinds or (kind == "integer" and "number" in kinds)):
        return json.dumps(text, ensure_ascii=False)
    return word


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _refused(what: str) -> SettingsError:
    return SettingsError(what, argument="json_schema", hint="simplify it")


def _properties(schema: Schema) -> list[tuple[str, Schema, bool]] | None:
    """Return names, schemas and whether each is required; None if any may be given.

    Raises:
        SettingsError: it says more of them.
    """
    more = schema.keys() - ANNOTATIONS - {"type", "properties", "required", "additionalProperties"}
    if more:
        raise _refused(f"{min(more)} of arguments is not kept in this form of calls")
    named, needed, others = schema.get("properties"), schema.get("required", []), schema.get("additionalProperties")
    if not (isinstance(named or {}, Mapping) and isinstance(needed, list) and {*needed} <= {*(named or {})}):
        raise _refused("properties or required are not those of a schema")
    if not named and others is not False:
        return None
    if others:
        raise _refused("additionalProperties beside properties are not kept in this form of calls")
    return [(name, _with_definitions(each, schema), name in needed) for name, each in (named or {}).items()]


def _property(schema: Schema, name: str) -> Schema:
    named = schema.get("properties")
    part = named.get(name) if isinstance(named, Mapping) else None
    return _with_definitions(part if part is not None else {}, schema)


def _with_definitions(part: Any, whole: Schema) -> Schema:
    """Return a part of a schema that finds what it refers to."""
    if not isinstance(part, Mapping):
        part = {} if part is True else {"enum": []}
    return {**{name: whole[name] for name in ("$defs", "definitions") if name in whole}, **part}


def _referred(schema: Schema, within: Sequence[str]) -> tuple[Schema, Sequence[str]]:
    """Return what a reference means.

    Raises:
        SettingsError: it is within itself, or means nothing.
    """
    while "$ref" in schema:
        reference = str(schema["$ref"])
        _, _, place = reference.partition("#/")
        group, _, name = place.partition("/")
        target = schema.get(group, {}).get(name) if group in ("$defs", "definitions") else None
        if reference in within or not isinstance(target, Mapping):
            raise _refused(f"the reference {reference} is not kept in this form of calls")
        within = (*within, reference)
        schema = _with_definitions(target, schema)
    return schema, within


def _values(schema: Schema) -> list[Any] | None:
    """Return the only values that a schema allows; None if it lists none."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def _kinds(schema: Schema, within: Sequence[str] = ()) -> set[str]:
    """Return the types that a schema allows; none if that is not sure."""
    try:
        schema, within = _referred(schema, within)
    except SettingsError:
        return set()
    values, kinds, several = _values(schema), schema.get("type"), schema.get("anyOf", schema.get("oneOf"))
    if values is not None:
        return {_KINDS.get(type(value), "null") for value in values}
    if kinds is not None:
        return {kinds} if isinstance(kinds, str) else {*map(str, kinds)}
    found = [_kinds(_with_definitions(each, schema), within) for each in several] if isinstance(several, list) else []
    return set[str]().union(*found) if all(found) else set()
