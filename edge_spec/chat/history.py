"""The tokens of a conversation, turn after turn."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.speculator import common_prefix
from edge_spec.text_model import TextModel

__all__ = ["continued", "head_of"]


def continued(model: TextModel, before: Sequence[int], text: str) -> tuple[list[int], int]:
    """Tokens of a rendered conversation that go on after ``before``, the tokens of its earlier turns.

    What a model wrote can often be cut into tokens in several ways. Its own way stays, as far as the text still
    says the same, so that a cache of ``before`` serves the next turn. The seam lies where a control token stands
    on one of its sides: there tokenisers cut in any case.

    Returns:
        The tokens, and how many of them are the first of ``before``.
    """
    raw = text.encode("utf-8", "surrogatepass")
    seams = [0]
    place = 0
    for n, token in enumerate(before):
        piece = model.spelling(token)
        if raw[place : place + len(piece)] != piece:
            break
        is_control = model.is_control(token)
        if is_control and seams[-1] != n:
            seams.append(n)
        place += len(piece)
        if is_control or (n + 1 == len(before) and _begins_with_control(model, raw[place:])):
            seams.append(n + 1)
    kept = seams[-1]
    if not kept:
        return model.prompt_tokens(text), 0
    place = sum(len(model.spelling(token)) for token in before[:kept])
    rest = raw[place:].decode("utf-8", "surrogatepass")
    return [*before[:kept], *model.tokenize(rest, add_special=False)], kept


def _begins_with_control(model: TextModel, raw: bytes) -> bool:
    rest = raw.decode("utf-8", "replace")
    tokens = model.tokenize(rest, add_special=False) if rest else []
    return bool(tokens) and model.is_control(tokens[0])


def head_of(model: TextModel, first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens open every conversation with the same system message.

    Args:
        first, second: tokens of two conversations of one user message each that differ from its first letter on.
    """
    n = common_prefix(first, second)
    # What is common at last is the beginning of a user's message.
    seam = next((place for place in range(n - 1, -1, -1) if model.is_control(first[place])), 0)
    return seam if seam > 1 else n
