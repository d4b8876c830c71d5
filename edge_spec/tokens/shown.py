"""Control tokens that are text to whoever reads a reply: marks of thoughts and of calls."""

from __future__ import annotations

from edge_spec.tokens.tokenizer import Tokenizer

__all__ = ["CHANNELS", "SHOWN", "shown_bytes"]

CHANNELS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
"""gpt-oss writes its messages with them."""

SHOWN = frozenset(
    (
        *("<think>", "</think>", "[THINK]", "[/THINK]", "<|channel>", "<channel|>"),
        *("<tool_call>", "</tool_call>", "<|tool_call_start|>", "<|tool_call_end|>", "[TOOL_CALLS]", "[ARGS]"),
        *("<|tool_call>", "<tool_call|>", '<|"|>'),
        *CHANNELS,
    )
)
"""Vocabularies list them as text or as control tokens, whichever was easier for who made them. Here their names are
their bytes, where they do not end a reply; in messages they stay names of control tokens."""


def shown_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the name of a control token that is shown; nothing for all others."""
    name = tokenizer.name(token)
    return name.encode() if name in SHOWN and not tokenizer.ends(token) else b""
