"""Texts to token ids and back, as llama.cpp's server offers it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from edge_spec.model import TextModel
from edge_spec.server.errors import bad_value
from edge_spec.server.fields import EACH, Fields, parse

__all__ = ["detokenized", "tokenized"]

_MOST = 1 << 17
"""The most characters or tokens: others' prompts wait meanwhile."""


class TextFields(Fields):
    content: str
    add_special: bool = False
    parse_special: bool = True


class TokenFields(Fields):
    tokens: Annotated[list[int], Field(max_length=_MOST), EACH]


def tokenized(model: TextModel, body: dict[str, Any]) -> dict[str, Any]:
    """Return the token ids of a text.

    Raises:
        ApiError: a field is wrong, or the text is too long. PromptError: it is no text.
    """
    asked = parse(TextFields, body)
    if len(asked.content) > _MOST:
        raise bad_value("content", f"it has {len(asked.content)} characters, and at most {_MOST} are taken; cut it")
    prompts = model.prompts
    return {"tokens": prompts.tokenize(asked.content, add_special=asked.add_special, controls=asked.parse_special)}


def detokenized(model: TextModel, body: dict[str, Any]) -> dict[str, Any]:
    """Return the text of token ids.

    Raises:
        ApiError: a field is wrong, or there are too many. PromptError: one is not in the vocabulary.
    """
    return {"content": model.prompts.detokenize(parse(TokenFields, body).tokens)}
