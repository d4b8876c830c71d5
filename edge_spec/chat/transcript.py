"""Conversations for reading: Markdown, and JSON for other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from edge_spec.chat.messages import Message

__all__ = ["to_json", "to_markdown"]

_TITLES = {"system": "System", "user": "You", "assistant": "Assistant", "tool": "Tool"}


def to_markdown(messages: Sequence[Message], *, thoughts: bool = False) -> str:
    """A heading and the text of every message, in order; with what the model thought as quotes if wanted."""
    parts = []
    for message in messages:
        text = message.answer if message.role == "assistant" else message.content
        if thoughts and message.thought:
            quoted = "\n".join(f"> {line}".rstrip() for line in message.thought.splitlines())
            text = f"{quoted}\n\n{text}"
        if message.role == "assistant" and not message.is_finished:
            text = f"{text.rstrip()} …"
        parts.append(f"## {_TITLES[message.role]}\n\n{text.strip()}\n")
    return "\n".join(parts)


def to_json(messages: Sequence[Message]) -> str:
    """``{"messages": [{"role": ..., "content": ...}, ...]}``, as chat programs exchange them."""
    return json.dumps({"messages": [message.to_json() for message in messages]}, ensure_ascii=False, indent=1) + "\n"
