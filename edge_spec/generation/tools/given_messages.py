"""Messages as programs give them, made into messages as chat templates take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_spec.errors import PromptError
from edge_spec.generation.tools.calls import ToolCall

__all__ = ["template_messages"]


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with arguments of calls as values, and with the names of the functions that results are of.

    An answer of calls alone has an empty text, since most templates add to it.

    Raises:
        PromptError: a call is none, or a result belongs to none before it.
    """
    made: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for number, message in enumerate(messages):
        values = dict(message)
        calls = [ToolCall.from_json(call) for call in values.pop("tool_calls", None) or ()]
        if calls:
            names |= {call.id: call.name for call in calls}
            values["tool_calls"] = [call.for_template() for call in calls]
        if values["role"] == "assistant":
            values["content"] = values.get("content") or ""
        result_of = values.get("tool_call_id")
        if values["role"] == "tool" and result_of is not None:
            if not isinstance(result_of, str) or result_of not in names:
                hint = "its tool_call_id must be the id of a call in an earlier message"
                raise PromptError(f"message {number} is the result of no call", hint=hint)
            values["name"] = names[result_of]
        made.append(values)
    return made
