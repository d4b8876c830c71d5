"""Arguments of calls as families write them: read as JSON while they stream in, and allowed by a grammar."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge_spec.foreign import parse_json
from edge_spec.generation.piece_reader import PieceReader, Waiting
from edge_spec.generation.tools.schemas import (
    KINDS,
    Rules,
    Schema,
    alternatives,
    kinds_of,
    pattern_of,
    property_of,
    referred,
    refused,
    values_of,
    with_definitions,
)
from edge_spec.sampling.json_schema import constraints, json_expression
from edge_spec.sampling.lark import literal

__all__ = ["BARE", "JSON", "PYTHON", "TAGGED", "Arguments"]

Put = Callable[[str], object]
"""Takes the next piece of the arguments in JSON."""

_SPELLED = {"true": "True", "false": "False", "null": "None"}
_WORDS = {word: value for value, word in _SPELLED.items()}


_PLAIN = {
    "boolean": "true|false|True|False",
    "null": "null|None",
    "integer": "-?(0|[1-9][0-9]{0,14})",
    "number": r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,10})?",
}
"""Expressions of values of which no more is said than their type; numbers as grammars of JSON have them."""

_STARTS = {"integer": "0-9\\-", "number": "0-9\\-", "array": r"\[", "object": r"\{"}
"""Beginnings of all others."""


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
        named = schema.get("properties")
        if not rules.strict and isinstance(named, Mapping):
            free = json_expression({})
            kept = {
                name: rules.kept(lambda each, _: json_expression(each), with_definitions(part, schema)) != free
                for name, part in named.items()
            }
            schema = {**schema, "properties": {name: part if kept[name] else True for name, part in named.items()}}
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
        """Read a string after its first quote."""
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
        return f'"(" {rules.named_values(schema, self._value, "%s=", "[A-Za-z_][A-Za-z0-9_]*=", ", ")} ")"'

    def _value(self, schema: Schema, _: Rules) -> str:
        """Return an expression of a value: in JSON, which Python reads but for three words, or as Python has it."""
        kinds, ways = kinds_of(schema), [json_expression(schema)]
        ways += ['"True"', '"False"'] if not kinds or "boolean" in kinds else []
        ways += ['"None"'] if not kinds or "null" in kinds else []
        values = values_of(schema)
        if values is not None:
            plain = [value for value in values if isinstance(value, str) and not {*value} & {*"'\\\n\r"}]
            words = [_SPELLED[json.dumps(value)] for value in values if value is None or isinstance(value, bool)]
            ways = [ways[0], *map(literal, words), *(literal(f"'{value}'") for value in plain)]
        elif kinds == {"string"} and not constraints(schema) - {"type"}:
            ways.append(r"/'([^'\\\r\n]|\\[\\'nrt])*'/")
        return " | ".join(ways)

    def written(self, values: Mapping[str, Any]) -> str:
        spelled = ((name, json.dumps(value, ensure_ascii=False)) for name, value in values.items())
        return "(" + ", ".join(f"{name}={_SPELLED.get(text, text)}" for name, text in spelled) + ")"


class _Bare(_Spelled):
    """An object whose names have no quotes, with strings between ``<|"|>``: Gemma 4."""

    quotes = ('<|"|>',)

    def grammar(self, schema: Schema, rules: Rules) -> str:
        # As the template writes them.
        members = rules.named_values(schema, self._value, "%s:", "[A-Za-z0-9_$.-]+:", ",", is_sorted=True)
        return rules.named(f'"{{" {members} "}}"')

    def _value(self, schema: Schema, rules: Rules) -> str:
        if constraints(schema) == {"$ref"}:
            return self._reference(schema, rules)
        parts = alternatives(schema)
        if len(parts) == 1 and parts[0] == schema:
            return self._one(schema, rules)
        return rules.named(" | ".join(self._value(part, rules) for part in parts))

    def _one(self, schema: Schema, rules: Rules) -> str:
        """Return an expression of a value of one type."""
        given, values, kind = constraints(schema), values_of(schema), schema.get("type")
        if not given:
            return self._any(rules)
        if values is not None and given <= {"const", "enum", "type"}:
            quote = json.dumps(self.quotes[0])[1:-1]
            spelled = [self._spelled(value) for value in values if quote not in json.dumps(value)]
            if spelled:
                return rules.named(" | ".join(map(literal, spelled)))
        if kind == "object":
            return self.grammar(schema, rules)
        if kind == "string":
            return f"{literal(self.quotes[0])} {rules.until(self.quotes[0], self._text(schema, rules))}"
        if kind == "array" and given <= {"type", "items", "minItems", "maxItems"}:
            json_expression({name: schema[name] for name in given - {"items"}})
            item = rules.kept(self._value, with_definitions(schema.get("items", {}), schema))
            least, most = schema.get("minItems", 0), schema.get("maxItems", "")
            if most == 0:
                return literal("[]")
            more = f'("," {item}){{{max(least - 1, 0)},{most and most - 1}}}'
            return rules.named(f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"')
        if kind in ("integer", "number", "boolean", "null"):
            return rules.named(json_expression(schema))
        raise refused("what it allows")

    def _text(self, schema: Schema, rules: Rules) -> str:
        """Return a terminal of strings without quotes in them."""
        allowed = rules.string(schema)
        without = f"~/(?s:.*){pattern_of(self.quotes[0])}(?s:.*)/"
        return rules.named(f"{allowed} & {without}", terminal=True) if allowed else "/(?s:.*)/"

    def _reference(self, schema: Schema, rules: Rules) -> str:
        """Return the name of the rule of what a reference means, made once; it may refer to itself."""
        name, target = str(schema["$ref"]), referred(schema)
        if target is None:
            raise refused(f"the reference {name}")
        if name not in rules.referred:
            rules.referred[name] = f"{rules.prefix}d{len(rules.referred)}"
            expression = rules.kept(self._value, target)
            rules.text += f"{rules.referred[name]}: {expression}\n"
        return rules.referred[name]

    def _any(self, rules: Rules) -> str:
        """Return the name of a rule for any value."""
        value = f"{rules.prefix}any"
        members = f"/[A-Za-z0-9_$.-]+:/ {value}"
        whole = rules.named(f'"{{" ({members} ("," {members})*)? "}}"')
        if f"\n{value}: " not in f"\n{rules.text}":
            plain = json_expression({"type": ["number", "boolean", "null"]})
            string = f"{literal(self.quotes[0])} {rules.until(self.quotes[0])}"
            rules.text += f'{value}: {string} | {whole} | "[" ({value} ("," {value})*)? "]" | {plain}\n'
        return value

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
            kinds = kinds_of(property_of(schema, key))
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
        arguments = rules.named_values(schema, self._value, "<parameter=%s>\n", r"<parameter=[^>\n]+>\n", "")
        return f'{arguments} "</function>"'

    def _value(self, schema: Schema, rules: Rules) -> str:
        """Return an expression of a value and its end.

        Strings and words are one terminal, since they may begin alike; what is written in JSON begins otherwise.
        """
        texts, others, starts = list[str](), list[str](), set[str]()
        kinds, parts = kinds_of(schema), alternatives(schema)
        for part in parts:
            given, kind, values = constraints(part), part.get("type"), values_of(part)
            if values is not None and given <= {"const", "enum", "type"}:
                texts += [f"/{pattern_of(text)}/" for value in values for text in self._spelled(value, values, kinds)]
            elif kind == "string" or not given:
                texts.append(rules.string(part) or "/(?s:.*)/")
            elif given == {"type"} and kind in _PLAIN:
                texts.append(f"/{_PLAIN[kind]}/")
            elif kind in _STARTS:
                others.append(json_expression(part))
                starts.add(_STARTS[kind])
            else:
                raise refused("what it allows")
        if not texts and not others:
            raise refused("values that cannot be written in it")
        ways = [f"({' | '.join(others)}) {literal(self._end)}"] if others else []
        if "/(?s:.*)/" in texts and not starts:
            ways = [rules.until(self._end)]
        elif texts:
            text = rules.named(" | ".join(texts), terminal=True)
            ends = f"~/(?s:.*){pattern_of(self._end)}(?s:.*)/"
            begins = f" & ~/[ \\t\\r\\n]*[{''.join(sorted(starts))}](?s:.*)/" if starts else ""
            ways.append(rules.until(self._end, rules.named(f"{text} & {ends}{begins}", terminal=True)))
        return f"({' | '.join(ways)}) {literal(chr(10))}"

    def _spelled(self, value: Any, values: Sequence[Any], kinds: set[str]) -> list[str]:
        """Return the texts that stand for ``value``: those which are read as one of ``values``."""
        plain = json.dumps(value, ensure_ascii=False)
        texts = [value] if isinstance(value, str) else [plain, _SPELLED.get(plain, plain)]
        read = {text: text if kinds == {"string"} else json.loads(_json_of(text, kinds)) for text in texts}
        return [text for text in read if read[text] in values and self._end not in text]


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
        kind = KINDS.get(type(parse_json(word)), "null")
    except ValueError:
        kind = "string"
    if kind == "string" or not (not kinds or kind in kinds or (kind == "integer" and "number" in kinds)):
        return json.dumps(text, ensure_ascii=False)
    return word


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
