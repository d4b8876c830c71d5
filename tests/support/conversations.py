"""Conversations of some turns."""

from __future__ import annotations

from typing import Any

from edge_spec import TextModel

ASKED = (
    "Hello, who are you?",
    "Tell me a story about a dog.",
    "And then?",
    "I would like to book a table for two.",
    "Where is it?",
    "Zwölf Boxkämpfer — 東京 🙂",
    "Say it again, please.",
    "Thank you!",
)


def converse(model: TextModel, n: int, **values: Any) -> list[Any]:
    """Return what is said in a conversation of ``n`` turns, and what is announced."""
    seen: list[Any] = []
    session = model.chat("You are a friend.", on_notice=seen.append, **{"seed": 4, "max_tokens": 40, **values})
    for turn in range(n):
        session.send(ASKED[turn % len(ASKED)]).read()
    session.close()
    return [*seen, *session.messages]
