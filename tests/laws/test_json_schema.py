"""Laws of JSON schemas: what is written is valid, nothing is passed over in silence, and drafts change no token."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from json_schemas import SCHEMAS

import edge_spec
from edge_spec.errors import SettingsError
from edge_spec.sampling.gbnf import check_gbnf
from edge_spec.sampling.json_schema import schema_to_gbnf
from edge_spec.sampling.schema_rules import FORMATS, integers, numbers
from edge_spec.sampling.schema_types import KEYWORDS


def valid(text: str, schema: dict[str, Any]) -> bool:
    jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    return True


def test_what_is_written_is_valid_and_the_same_with_and_without_drafts(probe_cache: Path) -> None:
    texts: dict[str, list[str]] = {}
    for mode in ("off", "hierarchy"):
        with edge_spec.load("demo", speculation=mode, n_ctx=768, cache_dir=probe_cache, n_threads=1) as model:
            texts[mode] = []
            for seed, schema in enumerate(SCHEMAS.values()):
                reply = model.generate("Tell me a story.", json_schema=schema, seed=seed, max_tokens=600)
                texts[mode].append(reply.read())
                assert reply.finish_reason == "eos", reply.text
                assert valid(reply.text, schema)
    assert texts["off"] == texts["hierarchy"]


@pytest.mark.parametrize("rules", [integers, numbers])
def test_numbers_keep_their_bounds_and_no_others(rules: Any) -> None:
    chance = random.Random(1)
    for _ in range(250):
        low = chance.randint(-1200, 1200)
        high = low + chance.randint(-3, chance.choice([3, 40, 3000]))
        bounds: dict[str, int] = {}
        if chance.random() < 0.8:
            bounds[chance.choice(["minimum", "exclusiveMinimum"])] = low
        if not bounds or chance.random() < 0.8:
            bounds[chance.choice(["maximum", "exclusiveMaximum"])] = high
        rule = rules(bounds)
        written = re.compile(re.sub('"([^"]*)"', lambda m: re.escape(m[1]), rule).replace(" ", "")) if rule else None
        near = [*range(low - 2, low + 3), *range(high - 2, high + 3)]
        for x in near + [chance.randint(-5000, 5000) for _ in range(30)]:
            for fraction in ("", ".5", ".25") if rules is numbers else ("",):
                number = f"{x}{fraction}"
                fits = jsonschema.Draft202012Validator(bounds).is_valid(float(number))
                assert bool(written and written.fullmatch(number)) == fits, (bounds, number)


def test_dates_that_can_be_written_are_those_of_the_calendar_up_to_the_28th() -> None:
    written = re.compile(re.sub('"([^"]*)"', lambda m: re.escape(m[1]), FORMATS["date"]).replace(" ", ""))
    for year in (0, 1, 9, 10, 99, 100, 999, 1000, 2026, 9999):
        for month in range(15):
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                fits = day <= 28 and jsonschema.FormatChecker().conforms(text, "date")
                assert bool(written.fullmatch(text)) == fits, text


REFUSED: list[tuple[Any, str]] = [
    ("{", "is not JSON"),
    (False, "at #: false allows nothing"),
    ([], "at #: not a schema"),
    ({"type": "thing"}, "at #/type: there is no type 'thing'"),
    ({"type": "string", "pattern": "^a"}, "at #/pattern: the keyword pattern of type string is not supported"),
    ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "at #/properties/a/uniqueItems: the keyword"),
    ({"type": "integer", "multipleOf": 3}, "at #/multipleOf"),
    ({"type": "number", "minimum": 0.5}, "at #/minimum: the bound 0.5 is not a whole number"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "at #: no number lies within the bounds"),
    ({"type": "string", "format": "email"}, "at #/format: there is no format 'email'"),
    ({"type": "string", "format": []}, r"at #/format: there is no format \[\]"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "at #/maxLength: maxLength is less"),
    ({"type": "array", "minItems": None}, "at #/minItems: None is not"),
    ({"type": "array", "maxItems": -1}, "at #/maxItems: -1 is not"),
    ({"enum": []}, "at #/enum: it must be a list of at least one value"),
    ({"enum": [1], "type": "string"}, "at #/enum: no value is of type string"),
    ({"enum": [1], "type": [[]]}, r"at #/enum: no value is of type \[\[\]\]"),
    ('{"const": 1e999}', "at #/const: a number in it is infinite"),
    ('{"const": {"a": [-Infinity]}}', "at #/const: a number in it is infinite"),
    (
        {"properties": {"a": {"enum": [1, float("nan")]}}},
        "at #/properties/a/enum: a number in it is",
    ),
    ({"const": 10**5000}, "at #/const: a number in it is infinite, no number, or too long for JSON"),
    ({"type": "object", "propertyNames": {"type": "integer"}}, "at #/propertyNames/type: names are strings"),
    ({"anyOf": [{}], "minimum": 3}, "at #/minimum: minimum with anyOf"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "at #/oneOf: alternatives 0 and 1 may overlap"),
    ({"allOf": [{}, {}]}, "at #/allOf: allOf of more than one"),
    ({"$ref": "other.json"}, "at #/.ref: 'other.json' is not within the schema"),
    ({"$ref": "#/$defs/x"}, "at #/.ref: '#/.defs/x' does not exist"),
    ({"$ref": "#"}, "can begin with itself"),
    ({"type": "number", "maximum": float("inf")}, "at #/maximum: the bound inf"),
    ({"type": "object", "propertyNames": True}, "at #/propertyNames: not a schema"),
    ({"properties": {"a": 3}}, "at #/properties/a: not a schema"),
    ({"enum": ["\ud800"]}, "not Unicode"),
    ('{"items":' * 3000 + "{}" + "}" * 3000, "nested too deep|not JSON"),
    ({"type": "object", "minProperties": 2}, "at #/minProperties: more than 1"),
    ({"if": {}}, "at #/if: the keyword if is not supported"),
    ({"required": ["a"], "additionalProperties": False}, "'a' is required and not allowed"),
]


WORDS = (
    *("a", "b", "$ref", "$defs", "title", "enum", "const", "anyOf", "oneOf", "allOf", "required", "properties"),
    *sorted({keyword for keywords in KEYWORDS.values() for keyword in keywords}),
)


@pytest.mark.parametrize(("schema", "words"), REFUSED)
def test_what_a_grammar_could_not_keep_is_refused_with_its_place(schema: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        schema_to_gbnf(schema)
    assert caught.value.hint


def random_value(chance: random.Random, depth: int) -> Any:
    """Something of JSON that may stand anywhere in a schema, most often where it has no meaning."""
    words = ("object", "array", "string", "integer", "number", "boolean", "null", "date", "#", "#/$defs/a", "a", "")
    kind = chance.randrange(16)
    if depth == 0 or kind < 7:
        return chance.choice([None, True, False, 0, 1, -1, 2.5, float("inf"), float("nan"), 10**20, *words])
    if kind < 10:
        return [random_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    found = {chance.choice(WORDS): random_value(chance, depth - 1) for _ in range(chance.randrange(4))}
    return {"type": chance.choice(words[:7]), **found} if kind < 13 else found


def test_no_schema_is_an_error_of_ours() -> None:
    """Whatever stands where, it is a grammar or refused."""
    chance, n_grammars = random.Random(5), 0
    for _ in range(20_000):
        schema = random_value(chance, 4)
        try:
            schema_to_gbnf(schema if isinstance(schema, dict) else {"items": schema})
            n_grammars += 1
        except SettingsError as error:
            assert error.argument == "json_schema"
    assert n_grammars > 1000


def test_annotations_are_no_constraints() -> None:
    described = {"title": "T", "description": "D", "default": 3, "examples": [1], "type": "boolean"}
    assert schema_to_gbnf(described) == schema_to_gbnf(json.dumps({"type": "boolean"}))


def test_the_grammar_of_every_schema_has_no_mistake() -> None:
    empty = {"type": "object", "additionalProperties": False}
    more: list[Any] = [{}, True, {"type": "array"}, {"type": "object"}, empty]
    for schema in (*SCHEMAS.values(), *more):
        check_gbnf(schema_to_gbnf(schema))
