"""Replies of a small model that are left half read, and waits that must end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from chat_world import chat_model, chat_table

from edge_spec import Reply, TextModel

PATIENCE_S = 60


MOST = (1, 4)
"""How many texts a decode can advance: an engine that holds one text, and one that holds several."""


def rows(most: int) -> dict[str, Any]:
    """Arguments of a table model that can advance so many texts in a decode."""
    return {"widths": tuple(range(1, 65)) if most > 1 else ()}


def text_model(most: int = 4) -> TextModel:
    return chat_model(chat_table(end=-20.0), n_ctx=4000, **rows(most))


def asked(model: TextModel, max_tokens: int | None = 12) -> Reply:
    return model.generate("ab", seed=1, max_tokens=max_tokens)


WHOLE = asked(text_model()).read()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine; an endless wait is an error."""
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def text_of(reply: Reply) -> str:
    return "".join([piece async for piece in reply])
