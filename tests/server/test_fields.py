"""Laws of what a client is told of a wrong field: its place in the request, and what is wanted there."""

from __future__ import annotations

from typing import Any

import pytest

from edge_spec.server.errors import ApiError
from edge_spec.server.fields import parse
from edge_spec.server.openai_api import ChatFields, CompletionFields, ReplyFields
from edge_spec.server.tokenizing import TokenFields

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (ChatFields, {}, "messages: this field is needed"),
        (ChatFields, {"messages": []}, "messages: must not be empty"),
        (ChatFields, {"messages": ["x"]}, "messages[0]: must be an object"),
        (ChatFields, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content: must be a text or a list"),
        (
            ChatFields,
            {"messages": MESSAGES, "response_format": {"type": "xml"}},
            "response_format.type: must be one of 'text', 'json_object' or 'json_schema'",
        ),
        (ChatFields, {"messages": MESSAGES, "n": 0}, "n: must be at least 1"),
        (ChatFields, {"messages": MESSAGES, "n": 1.5}, "n: must be a whole number"),
        (ChatFields, {"messages": MESSAGES, "tool_choice": {"a": 1}}, "tool_choice.function: this field is needed"),
        (CompletionFields, {"prompt": {}}, "prompt: must be a text or a list"),
        (CompletionFields, {"prompt": [[1], [None]]}, "prompt[1][0]: must be a whole number"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_wanted(kind: type[ReplyFields], body: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(kind, body)
    assert caught.value.message == said
    assert said.startswith(f"{caught.value.param}: ")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatFields, {"messages": MESSAGES, "stream_options": {"include_usage": None}}),
        (ChatFields, {"messages": MESSAGES, "response_format": {"type": "text", "json_schema": None}}),
        (
            ChatFields,
            {
                "messages": [
                    {"role": "assistant", "content": None, "tool_calls": [{"id": None, "function": {"name": "f"}}]},
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": None}}]},
                    {"role": "user", "content": [{"type": "text", "text": "a", "refusal": None}], "name": None},
                ]
            },
        ),
        (
            ChatFields,
            {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "f", "strict": None}}]},
        ),
    ],
)
def test_null_is_a_field_that_is_not_there_wherever_it_stands(kind: type[ReplyFields], body: dict[str, Any]) -> None:
    assert parse(kind, body) == parse(kind, without_nulls(body))


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [*map(without_nulls, value)] if isinstance(value, list) else value


def test_null_in_a_schema_is_a_value() -> None:
    schema = {"const": None, "enum": [None, {"a": None}]}
    given = parse(ChatFields, {"messages": MESSAGES, "json_schema": schema})
    assert given.json_schema == schema


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({}, 9),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 4}, 4),
        ({"max_tokens": 5, "max_completion_tokens": 4}, 4),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 5, "max_completion_tokens": -1}, None),
    ],
)
@pytest.mark.parametrize("more", [{"messages": MESSAGES}, {"prompt": "a"}])
def test_limits_are_those_of_either_field_and_minus_one_is_none(
    more: dict[str, Any], body: dict[str, Any], limit: int | None
) -> None:
    kind: type[ReplyFields] = ChatFields if "messages" in more else CompletionFields
    assert parse(kind, {**more, **body}).limit(9) == limit


def test_other_negative_limits_are_refused() -> None:
    for wrong in (0, -2, 1.5):
        with pytest.raises(ApiError, match="max_tokens: must be"):
            parse(ChatFields, {"messages": MESSAGES, "max_tokens": wrong})


def test_a_seed_of_minus_one_is_drawn() -> None:
    seeds = [parse(ChatFields, {"messages": MESSAGES, "seed": seed}).own_seed for seed in (-1, -2, 0, 7)]
    assert seeds == [None, -2, 0, 7]


@pytest.mark.parametrize(
    ("kind", "body", "place"),
    [
        (ChatFields, {"messages": ["x"] * 200}, "messages[0]"),
        (ChatFields, {"messages": [{"role": "user", "content": ["x"] * 200}]}, "messages[0].content[0]"),
        (
            ChatFields,
            {"messages": [{"role": "assistant", "content": "a", "tool_calls": [0] * 200}]},
            "messages[0].tool_calls[0]",
        ),
        (ChatFields, {"messages": MESSAGES, "tools": [0] * 200}, "tools[0]"),
        (
            ChatFields,
            {
                "messages": MESSAGES,
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [0] * 200}},
            },
            "tool_choice.allowed_tools.tools[0]",
        ),
        (CompletionFields, {"prompt": [1.5] * 200}, "prompt[0]"),
        (CompletionFields, {"prompt": [["a"] * 200]}, "prompt[0][0]"),
        (TokenFields, {"tokens": ["a"] * 200}, "tokens[0]"),
    ],
)
def test_of_a_list_the_first_thing_that_is_wrong_is_told(kind: type[Any], body: dict[str, Any], place: str) -> None:
    """Nothing behind it is looked at, which would take seconds for a hundred thousand."""
    with pytest.raises(ApiError) as caught:
        parse(kind, body)
    assert caught.value.param == place
