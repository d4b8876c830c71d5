"""Calls of tools and their results in messages, for templates that know less of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from json import dumps
from typing import Any

from edge_spec.generation.control_names import WrittenText
from edge_spec.generation.tools.syntax import HERMES, CallSyntax

__all__ = ["in_plain_text", "one_call_each", "with_thoughts"]


def one_call_each(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the same conversation with one call per message, each followed by its result."""
    made: list[dict[str, Any]] = []
    results = {message.get("tool_call_id"): message for message in messages if message["role"] == "tool"}
    placed: set[str] = set()
    for message in messages:
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            if message.get("tool_call_id") not in placed:
                made.append(message)
            continue
        for number, call in enumerate(calls):
            made.append({**message, "content": "" if number else message["content"], "tool_calls": [call]})
            if call["id"] in results:
                made.append(results[call["id"]])
                placed.add(call["id"])
    return made


def with_thoughts(messages: Sequence[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """Return the same conversation with thoughts under the name that a template asks for."""
    if "message.thinking" not in template:
        return list(messages)
    made = []
    for message in messages:
        thought = message.get("reasoning_content", "")
        if thought and "tool_calls" in message and "<|channel|>" in template:
            # gpt-oss has room for one text beside a call.
            thought = "\n\n".join(filter(None, (thought, message["content"])))
            message = {**message, "content": ""}
        made.append({**message, "thinking": thought} if thought else message)
    return made


def in_plain_text(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], form: CallSyntax = HERMES
) -> list[dict[str, Any]]:
    """Return a conversation for templates without tools: they, their calls and results become text of messages.

    Args:
        form: how the model writes calls; results stay as they are where the template takes them.
    """
    made: list[dict[str, Any]] = []
    for is_result, those in groupby(messages, lambda message: message["role"] == "tool"):
        if is_result and not form.takes_results:
            texts = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in those]
            made.append({"role": "user", "content": "\n".join(texts)})
        else:
            made += (_with_calls(message, form) for message in those)
    if tools:
        instructions = _INSTRUCTIONS.format(tools="\n".join(dumps(tool, ensure_ascii=False) for tool in tools))
        if made[0]["role"] == "system":
            made[0] = {**made[0], "content": f"{made[0]['content']}\n\n{instructions}"}
        else:
            made.insert(0, {"role": "system", "content": instructions})
    return made


def _with_calls(message: dict[str, Any], form: CallSyntax) -> dict[str, Any]:
    """Return a message with its calls as text."""
    if "tool_calls" not in message:
        return message
    text, written = message["content"], set[int]()
    for written_call in form.written([call["function"] for call in message["tool_calls"]]):
        text += "\n" if text else ""
        start = len(text)
        text += written_call
        # Marks that no client has said are control tokens.
        written |= {start, len(text) - len(form.closing.lstrip("}]\n"))}
    return {"role": "assistant", "content": WrittenText.of(text, written)}


_INSTRUCTIONS = """# Tools

You may call functions to answer the user. These are their signatures:
<tools>
{tools}
</tools>

Write each call as a JSON object with the function's name and its arguments, like this:
<tool_call>
{{"name": "function-name", "arguments": {{"argument-name": "value"}}}}
</tool_call>"""
