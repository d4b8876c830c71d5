"""Replies of a small model that are left half read, and waits that must end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from chat_world import chat_model, chat_table

from edge_spec import Reply, TextModel

PATIENCE_S = 60


def text_model() -> TextModel:
    return chat_model(chat_table(end=-20.0), n_ctx=4000)


def asked(model: TextModel, max_tokens: int | None = 12) -> Reply:
    return model.generate("ab", seed=1, max_tokens=max_tokens)


WHOLE = asked(text_model()).read()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine; an endless wait is an error."""
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def text_of(reply: Reply) -> str:
    return "".join([piece async for piece in reply])
