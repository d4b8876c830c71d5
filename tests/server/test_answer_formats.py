"""Laws of what a request says of its answer: a schema is kept wherever it is given, and beside tools as well."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from marked_vocabulary import takes

from edge_spec.generation.tools.answers import AnswerParser, MergedMessage
from edge_spec.generation.tools.functions import Tool
from edge_spec.generation.tools.grammar import calls_grammar, schema_of
from edge_spec.generation.tools.syntax import FORMS, HERMES, LLAMA, CallSyntax
from edge_spec.sampling.json_schema import schema_to_lark
from edge_spec.server.errors import ApiError
from edge_spec.server.fields import parse
from edge_spec.server.openai_api import ChatFields, wanted_format

SCHEMA = {"type": "object", "properties": {"name": {"enum": ["Rex", "find"]}, "n": {"type": "integer"}}}
SCHEMA["required"] = ["name"]
MESSAGES = [{"role": "user", "content": "Which?"}]

PLACES: dict[str, dict[str, Any]] = {
    "as OpenAI has it": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": None, "schema": SCHEMA}}
    },
    "without the wrapper": {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    "beside the type": {"response_format": {"type": "json_schema", "schema": SCHEMA}},
    "beside json_object": {"response_format": {"type": "json_object", "schema": SCHEMA}},
    "in json_object": {"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}},
    "at the top": {"json_schema": SCHEMA},
    "at the top in a wrapper": {"json_schema": {"name": "x", "schema": SCHEMA}},
    "as format": {"format": SCHEMA},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_schema_is_kept_wherever_it_is_given(place: str) -> None:
    wanted = wanted_format(parse(ChatFields, {"messages": MESSAGES, **PLACES[place]}))
    assert wanted[0] == {"json_schema": SCHEMA}


def test_format_json_is_an_object() -> None:
    wanted = wanted_format(parse(ChatFields, {"messages": MESSAGES, "format": "json"}))
    assert wanted == ({"json_schema": {"type": "object"}}, "format")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA, "json_schema": SCHEMA}},
            "response_format.schema",
        ),
        ({"response_format": {"type": "json_object"}, "json_schema": SCHEMA}, "json_schema"),
        ({"format": SCHEMA, "grammar": 'root ::= "a"'}, "grammar"),
        ({"format": "yaml"}, "format"),
    ],
)
def test_what_cannot_be_wanted_is_refused_by_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        wanted_format(parse(ChatFields, {"messages": MESSAGES, **fields}))
    assert caught.value.status == 400 and caught.value.param == param


@pytest.mark.long
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"json_schema": {"name": "x", "schema": 3}}, "json_schema.schema"),
        ({"json_schema": {"type": "string", "pattern": 3}}, "json_schema"),
        (
            {"format": {"type": "string", "pattern": 3}, "tools": [{"type": "function", "function": {"name": "a"}}]},
            "format",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_place(served: Any, fields: dict[str, Any], param: str) -> None:
    answer = served.post(json={"messages": MESSAGES, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.long
def test_the_server_writes_by_schemas_in_other_places(served: Any) -> None:
    for place in ("without the wrapper", "beside json_object", "at the top", "as format"):
        asked = {"messages": MESSAGES, "max_tokens": 60, "seed": 1, **PLACES[place]}
        answer = served.post(json=asked).json()["choices"][0]
        jsonschema.validate(json.loads(answer["message"]["content"]), SCHEMA)


FUNCTIONS = [
    Tool(name="find", parameters={"properties": {"at": {"type": "string"}}}),
    Tool(name="now"),
]
SCHEMAS = {function.name: schema_of(function) for function in FUNCTIONS}


@pytest.mark.parametrize("form", FORMS)
def test_beside_tools_an_answer_is_by_the_schema_or_calls(form: CallSyntax) -> None:
    arguments = {"<tool_call>\n<function=": "</function>", "<|tool_call_start|>[": "()"}.get(form.opening, "{}")
    called = (form.forced or form.opening) + "now" + form.middle + arguments + form.closing
    grammar = calls_grammar(
        FUNCTIONS, form, required=False, several=True, may_think=False, answer=schema_to_lark(SCHEMA)
    )
    for text in ('{"name": "Rex"}', '{"name": "find", "n": 3}', called):
        assert takes(grammar, text), text
    for text in ("", "Rex", '{"name": "Tom"}', f"Let me see. {called}", f"{called} x", '{"name": "now"}'):
        assert not takes(grammar, text), text
    if form.separator:
        assert takes(grammar, f"{called}{form.separator}{called}")


@pytest.mark.parametrize("form", [HERMES, LLAMA])
def test_an_answer_by_a_schema_is_text_whatever_its_strings_say(form: CallSyntax) -> None:
    one = form.opening + "now" + form.middle + "{}" + form.closing
    texts = ['{"name": "Rex"}', '{"name": "find", "n": 3}', '{"name": "<tool_call>", "parameters": {}}', "[]", '"find"']
    for text in texts:
        for pieces in ([text], list(text)):
            assert read(form, pieces) == {"role": "assistant", "content": text}
    for pieces in ([one], list(one)):
        message = read(form, pieces)
        assert message["content"] is None and message["tool_calls"][0]["function"]["name"] == "now"


def read(form: CallSyntax, pieces: list[str]) -> dict[str, Any]:
    parser = AnswerParser("", form, SCHEMAS, alone=True)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return MergedMessage(deltas + parser.finish()).message()


@pytest.mark.long
def test_the_server_takes_tools_and_a_schema_at_once(served: Any) -> None:
    tools = [{"type": "function", "function": {"name": "find", "parameters": {"properties": {"at": {"const": 1}}}}}]
    seen = set()
    for seed in range(8):
        answer = served.chat("Which?", tools=tools, seed=seed, max_tokens=200, **PLACES["as OpenAI has it"]).choices[0]
        if answer.finish_reason == "stop":
            jsonschema.validate(json.loads(answer.message.content), SCHEMA)
        elif answer.finish_reason == "tool_calls":
            assert {each.function.name for each in answer.message.tool_calls} == {"find"}
        seen.add(answer.finish_reason)
    assert seen >= {"stop"}
