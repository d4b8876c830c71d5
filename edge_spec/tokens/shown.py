"""Control tokens that are shown in replies: marks of thoughts and of calls."""

from __future__ import annotations

import re

__all__ = ["CHANNELS", "SHOWN", "is_mark"]

CHANNELS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
"""The marks with which gpt-oss writes its messages."""

SHOWN = frozenset(
    (
        *("<think>", "</think>", "[THINK]", "[/THINK]", "<|channel>", "<channel|>"),
        *("<tool_call>", "</tool_call>", "<|tool_call_start|>", "<|tool_call_end|>", "[TOOL_CALLS]", "[ARGS]"),
        *("<|tool_call>", "<tool_call|>", '<|"|>'),
        *CHANNELS,
    )
)
"""Vocabularies list these marks as text or as control tokens. Here their names are
their bytes, where they do not end a reply; in messages they stay names of control tokens."""


_MARK = re.compile(r"<\|[^<>\s]+>|<[^<>\s]+\|>")


def is_mark(name: str) -> bool:
    """Return whether a token that a vocabulary lists as text has the name of a control token.

    Gemma 4's quotes and calls are such, and gpt-oss's channels. Tags such as ``<think>``, which families list as text,
    are none.
    """
    return _MARK.fullmatch(name) is not None
