"""Laws of JSON schemas: what is written is valid, nothing is passed over in silence, and drafts change no token."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from datetime import datetime, time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from guided_texts import demo_vocabulary, random_text, takes
from json_schemas import SCHEMAS
from weekly import sizes

import edge_spec
from edge_spec.errors import SettingsError
from edge_spec.sampling.guidance import GuidedGrammar, check_grammar
from edge_spec.sampling.json_schema import KEYWORDS, schema_to_lark


def valid(text: str, schema: dict[str, Any]) -> bool:
    jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    return True


@pytest.mark.long
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


def allows(schema: Any, text: str) -> bool:
    return takes(GuidedGrammar(demo_vocabulary(), schema_to_lark(schema)), text)


def test_numbers_keep_their_bounds_and_no_others() -> None:
    chance = random.Random(1)
    for kind in ("integer", "number"):
        for _ in range(25):
            scale = chance.choice([1, 1, 4]) if kind == "number" else 1
            low = chance.randint(-1200, 1200) / scale
            high = low + chance.randint(0, chance.choice([3, 40, 3000])) / scale
            bounds: dict[str, float] = {}
            if chance.random() < 0.8:
                bounds[chance.choice(["minimum", "exclusiveMinimum"])] = low
            if not bounds or chance.random() < 0.8:
                bounds[chance.choice(["maximum", "exclusiveMaximum"])] = high
            schema = {"type": kind, **bounds}
            try:
                grammar = GuidedGrammar(demo_vocabulary(), schema_to_lark(schema))
            except SettingsError as error:
                assert "cannot be kept: Unsatisfiable" in str(error)
                grammar = None
            near = [round(x) + n for x in (low, high) for n in range(-2, 3)]
            for x in near + [chance.randint(-5000, 5000) for _ in range(10)]:
                for fraction in ("", ".5", ".25") if kind == "number" else ("",):
                    number = f"{x}{fraction}"
                    fits = jsonschema.Draft202012Validator(bounds).is_valid(float(number))
                    assert (grammar is not None and takes(grammar, number)) == fits, (bounds, number)


def test_numbers_end() -> None:
    for schema in ({"type": "number"}, {"type": ["integer", "null"]}, {"minimum": 3}):
        assert allows(schema, "123456789012345") and not allows(schema, "1234567890123456")
    assert allows({"type": "number"}, "0.1234567891") and not allows({"type": "number"}, "0.12345678912")


def test_dates_that_can_be_written_are_those_of_the_calendar_up_to_the_28th() -> None:
    grammar = GuidedGrammar(demo_vocabulary(), schema_to_lark({"type": "string", "format": "date"}))
    for year in (0, 1, 9, 10, 99, 100, 999, 1000, 2026, 9999):
        for month in (0, 1, 2, 9, 10, 12, 13):
            for day in (0, 1, 9, 10, 28, 29, 30, 31, 32):
                text = f"{year:04}-{month:02}-{day:02}"
                fits = day <= 28 and jsonschema.FormatChecker().conforms(text, "date")
                assert takes(grammar, f'"{text}"') == fits, text


@pytest.mark.parametrize("schema", [{"format": "time"}, {"format": "date-time"}])
def test_times_are_those_that_python_reads(schema: dict[str, Any]) -> None:
    read = time.fromisoformat if schema["format"] == "time" else datetime.fromisoformat
    for seed in range(60):
        text = random_text(schema_to_lark(schema), seed, 60)
        if text is not None:
            read(json.loads(text))
    date = "" if schema["format"] == "time" else "2026-02-28T"
    assert allows(schema, f'"{date}23:59:59.5+01:30"') and not allows(schema, f'"{date}23:59:60Z"')


@pytest.mark.long
def test_constants_are_written_as_they_are_or_refused() -> None:
    chance, n_refused = random.Random(2), 0

    def value(depth: int) -> Any:
        kind = chance.randrange(9 if depth else 7)
        if kind < 2:
            return chance.choice([0, -7, 2**53 - 1, -(2**53), 10**20, chance.randint(-(10**16), 10**16)])
        if kind < 4:
            return chance.choice([0.1, 1e-7, 1e22, chance.gauss(0, 1), round(chance.gauss(0, 1e4), 3), 2.5e-10])
        if kind < 6:
            return chance.choice([None, True, "", "a/b", 'so "\\', "東京 🙂\u2028", "\x01\n\x7f"])
        if kind == 7:
            return [value(depth - 1) for _ in range(chance.randrange(3))]
        return {chance.choice('ab"é'): value(depth - 1) for _ in range(chance.randrange(3))} if depth else False

    for _ in range(400):
        constant = value(2)
        try:
            lark = schema_to_lark({"const": constant})
        except SettingsError as error:
            assert "has more than 15 digits" in str(error)
            n_refused += 1
            continue
        text = random_text(lark, 1, 300)
        assert text is not None and json.loads(text) == constant, (constant, text)
    assert 20 < n_refused < 200


REFUSED: list[tuple[Any, str]] = [
    ("{", "is not JSON"),
    (False, "at #: false allows nothing"),
    ([], "at #: not a schema"),
    ({"type": "thing"}, "cannot be kept: Invalid type: thing"),
    ({"type": "string", "pattern": "(?=a)"}, "has the group"),
    ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "at #/properties/a/uniqueItems: the keyword"),
    ({"type": "integer", "multipleOf": 0}, "cannot be kept"),
    ({"type": "number", "minimum": 2**53}, "at #/minimum: the bound 9007199254740992 is not a number below"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum .3. is greater than maximum .2."),
    ({"type": "string", "format": "street"}, "cannot be kept: Unknown format: street"),
    ({"type": "string", "format": []}, r"at #/format: \[\] is not a text"),
    ({"propertyNames": {"pattern": []}}, r"at #/propertyNames/pattern: \[\] is not a text"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength .3. is greater than maxLength .2."),
    ({"type": "array", "minItems": None}, "at #/minItems: null is not"),
    ({"type": "array", "maxItems": -1}, "at #/maxItems: -1 is not"),
    ({"enum": []}, "at #/enum: it must be a list of at least one value"),
    ({"enum": [1], "type": "string"}, "cannot be kept: Unsatisfiable schema: incompatible types"),
    ({"enum": [1], "type": [[]]}, "cannot be kept: type must be a string"),
    ('{"const": 1e999}', "at #/const: a number in it is infinite"),
    ('{"const": {"a": [-Infinity]}}', "at #/const: a number in it is infinite"),
    ({"const": 10**309}, "at #/const: a number in it is .* too long for JSON"),
    ({"enum": [{"a": -(10**309)}]}, "at #/enum: a number in it is .* too long for JSON"),
    ({"type": "integer", "minimum": -(10**309)}, "at #/minimum: the bound -10{309} is not"),
    ({"type": "number", "multipleOf": 10**309}, "at #/multipleOf: the bound 10{309} is not"),
    ({"type": "string", "maxLength": 10**309}, "at #/maxLength: 10{309} is not"),
    (
        {"properties": {"a": {"enum": [1, float("nan")]}}},
        "at #/properties/a/enum: a number in it is",
    ),
    ({"const": 10**5000}, "is not JSON: Exceeds the limit"),
    ({"type": "object", "propertyNames": {"type": "integer"}}, "at #/propertyNames/type: names are strings"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "at #/oneOf: alternatives 0 and 1 may overlap"),
    ({"oneOf": [{"type": True}, {"type": "null"}]}, "at #/oneOf: alternatives 0 and 1 may overlap"),
    ({"oneOf": [{"enum": [1]}, {"type": [1, {}], "required": ["a"]}]}, "at #/oneOf: alternatives 0 and 1 may overlap"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "cannot be kept: Unsatisfiable schema: incompatible types"),
    ({"$ref": "other.json"}, 'at #/.ref: "other.json" is not within the schema'),
    ({"$ref": "#/$defs/x"}, 'at #/.ref: "#/.defs/x" does not exist'),
    ({"$ref": "#"}, "cannot be kept: it allows nothing"),
    ({"type": "number", "maximum": float("inf")}, "at #/maximum: the bound Infinity"),
    ({"type": "object", "propertyNames": True}, "at #/propertyNames: not a schema"),
    ({"properties": {"a": 3}}, "at #/properties/a: not a schema"),
    ({"enum": ["\ud800"]}, "cannot be kept: failed to parse"),
    ('{"items":' * 3000 + "{}" + "}" * 3000, "nested too deep|not JSON"),
    ({"type": "object", "minProperties": 2}, "at #/minProperties: more than 1"),
    ({"if": {}}, "at #/if: the keyword if is not supported"),
    ({"required": ["a"], "additionalProperties": False}, '"a" is required and not allowed'),
]


@pytest.mark.parametrize("keyword", ["type", "properties", "required", "enum", "const", "$ref"])
@pytest.mark.parametrize("odd", [True, 7, "x", None, [], [[]], [{}], {}, {"x": 5}])
def test_alternatives_that_are_referred_to_may_be_of_any_shape(keyword: str, odd: Any) -> None:
    """They are compared before they are read."""
    for other in ({}, {"const": 1}, {"required": ["a"], "properties": {"a": {"const": 1}}}):
        schema = {"oneOf": [{"$ref": "#/$defs/a"}, {"const": 2}], "$defs": {"a": {**other, keyword: odd}}}
        with suppress(SettingsError):
            schema_to_lark(schema)


WORDS = (
    *("a", "b", "$ref", "$defs", "title", "enum", "const", "anyOf", "oneOf", "allOf", "required", "properties"),
    *sorted(KEYWORDS),
)


@pytest.mark.parametrize(("schema", "words"), REFUSED)
def test_what_a_grammar_could_not_keep_is_refused_with_its_place(schema: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        GuidedGrammar(demo_vocabulary(), schema_to_lark(schema))
    assert caught.value.hint and caught.value.argument == "json_schema"


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


@pytest.mark.parametrize("n_schemas", sizes(1_000, weekly=20_000))
def test_no_schema_is_an_error_of_ours(n_schemas: int) -> None:
    """Whatever stands where, it is a grammar or refused."""
    chance, n_grammars = random.Random(5), 0
    for _ in range(n_schemas):
        schema = random_value(chance, 4)
        try:
            check_grammar(schema_to_lark(schema if isinstance(schema, dict) else {"items": schema}))
            n_grammars += 1
        except SettingsError as error:
            assert error.argument == "json_schema"
    assert n_grammars > n_schemas // 20


def random_schema(chance: random.Random, depth: int) -> dict[str, Any]:
    """A schema whose keywords have values that they may have."""
    inner = (lambda: random_schema(chance, depth - 1)) if depth else (lambda: {"enum": [1, "a", None]})
    some: list[dict[str, Any]] = [
        {"type": "string", "maxLength": chance.randrange(4)},
        {"type": "string", "pattern": chance.choice(["^a+$", "b", "^[0-9]{2}", "[^x]$", r"^\d\w$"]), "maxLength": 5},
        {"type": "string", "format": chance.choice(["date", "ipv4", "uuid"])},
        {"type": "number", "minimum": chance.randint(-9, 9) / 4, "maximum": 9},
        {"type": "integer", "multipleOf": chance.randint(1, 7), "minimum": -20, "maximum": 20},
        {"type": ["boolean", "null"]},
        {"const": chance.choice([1, "a", [1, None], {"a": 0.5}])},
        {"type": "array", "items": inner(), "minItems": chance.randrange(2), "maxItems": 2},
        {"prefixItems": [inner(), inner()], "minItems": chance.randrange(3)},
        {"properties": {"a": inner(), "b": inner()}, "required": chance.choice([[], ["b"], ["a", "c"]])},
        {"properties": {"a": inner()}, "additionalProperties": chance.choice([False, inner()]), "type": "object"},
        {"propertyNames": {"pattern": "^[ab]$"}, "additionalProperties": inner(), "maxProperties": 2},
        {"propertyNames": {"enum": ["x", "y.z"]}, "maxProperties": 1},
        {"patternProperties": {"^a": inner()}, "additionalProperties": False, "maxProperties": 2},
        {"anyOf": [inner(), inner()]},
        {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
        {
            "allOf": [
                {"properties": {"a": inner()}, "required": ["a"]},
                {"properties": {"b": inner()}, "type": "object"},
            ]
        },
        {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"$ref": "#/$defs/d", "minLength": 1},
    ]
    return chance.choice(some)


@pytest.mark.long
@pytest.mark.parametrize("n_schemas", sizes(80, weekly=2_000))
def test_what_random_schemas_let_be_written_is_valid(n_schemas: int) -> None:
    chance, n_valid = random.Random(7), 0
    for seed in range(n_schemas):
        schema = {**random_schema(chance, 2), "$defs": {"d": {"type": "string", "maxLength": 3}}}
        try:
            text = random_text(schema_to_lark(schema), seed, 80)
        except SettingsError:
            continue
        if text is not None:
            assert valid(text, schema), (schema, text)
            n_valid += 1
    assert n_valid > n_schemas // 2


def test_annotations_are_no_constraints() -> None:
    described = {"title": "T", "description": "D", "default": 3, "examples": [1], "type": "boolean"}
    assert schema_to_lark(described) == schema_to_lark(json.dumps({"type": "boolean"}))


def test_what_a_schema_leaves_open_is_closed_unless_several_schemas_join() -> None:
    person: dict[str, Any] = {"properties": {"name": {"type": "string"}}}
    pair: dict[str, Any] = {"prefixItems": [{"type": "null"}]}
    assert allows(person, '{"name": "x"}') and not allows(person, '{"name": "x", "age": 1}')
    assert not allows(person, "3")
    assert allows(pair, "[null]") and not allows(pair, "[null, 1]")
    aged = {"properties": {"age": {"type": "integer"}}, "required": ["age"]}
    assert allows({"allOf": [person, aged]}, '{"name": "x", "age": 1}')
    assert allows({**person, "additionalProperties": True}, '{"name": "x", "age": 1}')
    assert allows({**person, "required": ["age"]}, '{"name": "x", "age": 1}')
