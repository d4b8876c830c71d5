"""Laws of tools whose schemas say what no grammar keeps: what can be kept is, and required arguments stay required."""

from __future__ import annotations

import json
from typing import Any

import pytest
from marked_vocabulary import takes

from edge_spec.generation.tools.functions import Tool
from edge_spec.generation.tools.grammar import calls_grammar
from edge_spec.generation.tools.syntax import FORMS, HERMES, CallSyntax
from edge_spec.sampling.json_schema import schema_to_lark

ANNOTATIONS: dict[str, Any] = {
    "example": "a",
    "nullable": True,
    "x-order": 3,
    "x-foo": {"bar": 1},
    "contentMediaType": "text/html",
    "contentEncoding": "base64",
    "externalDocs": {"url": "x"},
    "xml": {"name": "x"},
}

NOT_KEPT: dict[str, Any] = {
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "a huge maxLength": {"type": "string", "maxLength": 10**9},
    "items as a list": {"type": "array", "items": [{"type": "string"}]},
    "a broken pattern": {"type": "string", "pattern": "("},
    "an unknown keyword": {"type": "string", "foo": 1},
    "a bound that is none": {"type": "integer", "minimum": "1"},
    "a reference into nothing": {"$ref": "#/$defs/none"},
}


def call(form: CallSyntax, values: dict[str, Any]) -> str:
    return f"{form.opening}f{form.middle}{form.arguments.written(values)}{form.closing}"


def grammar_of(schema: dict[str, Any], form: CallSyntax = HERMES, **more: Any) -> tuple[str, list[str]]:
    notices: list[str] = []
    made = calls_grammar(
        [Tool(name="f", parameters=schema)],
        form,
        required=True,
        several=False,
        may_think=False,
        on_notice=notices.append,
        **more,
    )
    return made, notices


@pytest.mark.parametrize("keyword", ANNOTATIONS)
def test_annotations_change_nothing(keyword: str) -> None:
    plain = {"type": "object", "properties": {"a": {"type": "string"}, keyword: {"type": "integer"}}, "required": ["a"]}
    noted = {**plain, keyword: ANNOTATIONS[keyword]}
    noted["properties"] = {**plain["properties"], "a": {"type": "string", keyword: ANNOTATIONS[keyword]}}  # type: ignore[dict-item]
    assert schema_to_lark(noted) == schema_to_lark(plain)
    for form in FORMS:
        found, notices = grammar_of(noted, form)
        assert (found, notices) == (grammar_of(plain, form)[0], [])


@pytest.mark.parametrize("reason", NOT_KEPT)
def test_one_argument_that_cannot_be_kept_frees_no_other(reason: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": NOT_KEPT[reason], "b": {"type": "integer"}, "c": {"type": "string"}},
        "required": ["a", "b"],
    }
    grammar, notices = grammar_of(schema)
    assert len(notices) == 1 and notices[0].endswith("some arguments may be anything")
    for value in ("x", 3, [1, 1], {"z": None}):
        assert takes(grammar, call(HERMES, {"a": value, "b": 1}))
    for values in ({}, {"a": 1}, {"b": 1}, {"a": 1, "b": "1"}, {"a": 1, "b": 1, "c": 2}, {"a": 1, "b": 1, "d": 2}):
        assert not takes(grammar, call(HERMES, values)), values


@pytest.mark.parametrize("form", [form for form in FORMS if form.arguments.written({"a": 1})[0] in "({"])
def test_what_is_said_of_all_arguments_together_leaves_each_as_it_is(form: CallSyntax) -> None:
    if not takes(grammar_of({"properties": {"a": {}}}, form)[0], call(form, {"a": 1})):
        pytest.skip("this form is not written by the server")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "dependencies": {"a": []}}
    grammar, notices = grammar_of(schema, form)
    assert len(notices) == 1 and notices[0].endswith("what it says of all arguments together is left out")
    assert takes(grammar, call(form, {"a": 1}))
    for values in ({}, {"a": "1"}):
        assert not takes(grammar, call(form, values)), values


def test_references_may_be_percent_coded() -> None:
    names = {"größe": "gr%C3%B6%C3%9Fe", "a b": "a%20b", "x/y~z": "x~1y~0z", "Foo[Bar]": "Foo%5BBar%5D", "50%": "50%25"}
    for name, coded in names.items():
        schema = {"properties": {"a": {"$ref": f"#/$defs/{coded}"}}, "$defs": {name: {"type": "integer"}}}
        assert '"type": "integer"' in schema_to_lark(schema)
        for form in FORMS:
            _, notices = grammar_of(schema, form)
            assert not notices, (json.dumps(schema), notices)
