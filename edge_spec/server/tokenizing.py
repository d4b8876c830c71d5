"""Texts to token ids and back, as llama.cpp's server offers it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from edge_spec.errors import PromptError
from edge_spec.server.errors import api_error, bad_value
from edge_spec.server.fields import EACH, Fields, parse
from edge_spec.server.jobs import JobMaker

__all__ = ["detokenized", "tokenized"]

_MOST = 1 << 17
"""The most characters or tokens: others' prompts wait meanwhile."""


class TextFields(Fields):
    content: str
    add_special: bool = False
    parse_special: bool = True


class TokenFields(Fields):
    tokens: Annotated[list[int], Field(max_length=_MOST), EACH]


def tokenized(jobs: JobMaker, body: dict[str, Any]) -> dict[str, Any]:
    """Return the token ids of a text.

    Raises:
        ApiError: a field is wrong, or the text is too long or no text.
    """
    asked = parse(TextFields, body)
    if len(asked.content) > _MOST:
        raise bad_value("content", f"it has {len(asked.content)} characters, and at most {_MOST} are taken; cut it")
    special, controls = asked.add_special, asked.parse_special
    try:
        return {"tokens": jobs.model.prompts.tokenize(asked.content, add_special=special, controls=controls)}
    except PromptError as error:
        raise api_error(error, {"prompt": "content"}) from None


def detokenized(jobs: JobMaker, body: dict[str, Any]) -> dict[str, Any]:
    """Return the text of token ids.

    Raises:
        ApiError: a field is wrong, there are too many, or one is not in the vocabulary.
    """
    try:
        return {"content": jobs.model.prompts.detokenize(parse(TokenFields, body).tokens)}
    except PromptError as error:
        raise api_error(error, {"prompt": "tokens"}) from None
