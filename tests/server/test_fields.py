"""Laws of what a client is told of a wrong field: its place in the request, and what is wanted there."""

from __future__ import annotations

from typing import Any

import pytest

from edge_spec.server.errors import ApiError
from edge_spec.server.fields import ChatFields, CompletionFields, ReplyFields, parse

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (ChatFields, {}, "messages: this field is needed"),
        (ChatFields, {"messages": []}, "messages: must have 1 or more items"),
        (ChatFields, {"messages": ["x"]}, "messages[0]: must be an object"),
        (ChatFields, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content: must be a text or a list"),
        (
            ChatFields,
            {"messages": MESSAGES, "response_format": {"type": "xml"}},
            "response_format.type: must be one of 'text', 'json_object' or 'json_schema'",
        ),
        (ChatFields, {"messages": MESSAGES, "n": 0}, "n: must be 1 or more"),
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
