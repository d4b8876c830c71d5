"""How models write calls of tools, by what their chat templates show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from json import dumps
from typing import Any

__all__ = ["HERMES", "LLAMA", "CallSyntax", "in_plain_text", "one_call_each", "syntax_of"]


@dataclass(frozen=True, kw_only=True)
class CallSyntax:
    """How a call is written: ``opening``, a JSON object of a name and arguments, ``closing``.

    Attributes:
        opening: what comes before the object; empty where an answer that begins with an object is a call.
        closing: what comes after it.
        separator: what stands between two calls.
        arguments: the name of the arguments in the object.
        takes_many: whether the template takes several calls in one message.
    """

    opening: str
    closing: str
    separator: str
    arguments: str
    takes_many: bool

    @property
    def mark(self) -> str:
        """What tells that a call begins."""
        return self.opening.rstrip() or "{"


HERMES = CallSyntax(
    opening="<tool_call>\n", closing="\n</tool_call>", separator="\n", arguments="arguments", takes_many=True
)
"""Hermes, Qwen 2.5 and 3, SmolLM, and every model that is told so in its prompt."""

LLAMA = CallSyntax(opening="", closing="", separator="; ", arguments="parameters", takes_many=False)
"""Llama 3.1 to 3.3."""


_NAMED = re.compile(r"\{\\*[\"']name\\*[\"']")
"""The beginning of a call, as templates quote it."""


def syntax_of(template: str) -> CallSyntax | None:
    """Return what a template teaches its model; None if it knows no tools, or writes calls in a way of its own."""
    if "tools" not in template:
        return None
    if "<tool_call>" in template and _NAMED.search(template) and "<function=" not in template:
        return HERMES
    if "ipython" in template and '"parameters"' in template:
        return LLAMA
    return None


def one_call_each(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the same conversation with one call per message, each followed by its result."""
    made: list[dict[str, Any]] = []
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
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


def in_plain_text(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation for templates without tools: they, their calls and results become text of messages."""
    made: list[dict[str, Any]] = []
    for is_result, those in groupby(messages, lambda message: message["role"] == "tool"):
        if is_result:
            texts = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in those]
            made.append({"role": "user", "content": "\n".join(texts)})
        else:
            made += map(_with_calls, those)
    if tools:
        instructions = _INSTRUCTIONS.format(tools="\n".join(dumps(tool, ensure_ascii=False) for tool in tools))
        if made[0]["role"] == "system":
            made[0] = {**made[0], "content": f"{made[0]['content']}\n\n{instructions}"}
        else:
            made.insert(0, {"role": "system", "content": instructions})
    return made


def _with_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its calls as text."""
    if "tool_calls" not in message:
        return message
    calls = [_written(call["function"]) for call in message["tool_calls"]]
    texts = ([message["content"]] if message["content"] else []) + calls
    return {"role": "assistant", "content": "\n".join(texts)}


def _written(function: dict[str, Any]) -> str:
    call = {"name": function["name"], HERMES.arguments: function["arguments"]}
    return HERMES.opening + dumps(call, ensure_ascii=False) + HERMES.closing


_INSTRUCTIONS = """# Tools

You may call functions to answer the user. These are their signatures:
<tools>
{tools}
</tools>

Write each call as a JSON object with the function's name and its arguments, like this:
<tool_call>
{{"name": "function-name", "arguments": {{"argument-name": "value"}}}}
</tool_call>"""
