"""Turn messages of clients into messages for chat templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from edge_spec.foreign import parse_json
from edge_spec.server.errors import ApiError, bad_value
from edge_spec.server.fields import MessageFields, PartFields

__all__ = ["template_messages"]


def template_messages(messages: Sequence[MessageFields]) -> list[dict[str, Any]]:
    """Return the messages for a chat template: text as one string, arguments of calls as values.

    ``developer`` is ``system``; an answer of calls alone has an empty text, since most templates add to it.

    Raises:
        ApiError: a part is not text, or a result belongs to a call that was not made.
    """
    made: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for place, message in enumerate(messages):
        param = f"messages[{place}]"
        role = "system" if message.role == "developer" else message.role
        if role == "user" and message.content is None:
            raise ApiError(400, f"{param}.content: this field is needed", code="invalid_value", param=param)
        values: dict[str, Any] = {"role": role, "content": _text(message.content, f"{param}.content")}
        if message.name is not None:
            values["name"] = message.name
        if message.reasoning_content and role == "assistant":
            values["reasoning_content"] = message.reasoning_content
        if message.tool_calls and role == "assistant":
            names |= {call.id: call.function.name for call in message.tool_calls}
            values["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _arguments(call.function.arguments, f"{param}.tool_calls[{number}]"),
                    },
                }
                for number, call in enumerate(message.tool_calls)
            ]
        if role == "tool":
            if message.tool_call_id not in names:
                raise bad_value(
                    f"{param}.tool_call_id",
                    "no earlier message has a call with this id; send the assistant's message with its tool_calls "
                    "before their results",
                )
            values |= {"tool_call_id": message.tool_call_id, "name": names[message.tool_call_id]}
        made.append(values)
    return made


def _text(content: str | Sequence[PartFields] | None, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for number, part in enumerate(content):
        text = part.text if part.type == "text" else part.refusal if part.type == "refusal" else None
        if text is None:
            shown = json.dumps(part.type[:32])
            raise ApiError(
                400,
                f'{param}[{number}].type: {shown} is not read here; send parts of type "text"',
                code="unsupported_content",
                param=f"{param}[{number}].type",
            )
        texts.append(text)
    return "\n".join(texts)


def _arguments(text: str | dict[str, Any], param: str) -> dict[str, Any]:
    if isinstance(text, dict):
        return text
    try:
        values = parse_json(text or "{}")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise bad_value(f"{param}.function.arguments", "a JSON object is needed, written as a string")
    return values
