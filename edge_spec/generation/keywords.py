"""What replies may be asked for, as keyword arguments for type checkers; ``TextModel.generate`` describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from edge_spec.sampling import SamplerKeywords

__all__ = ["GenerateKeywords", "RepliesKeywords", "ReplyKeywords"]


class RepliesKeywords(TypedDict, total=False):
    """What replies are asked for besides their sampler's settings; see ``TextModel.generate``."""

    max_tokens: int | None
    stop: str | Sequence[str] | None
    grammar: str | None
    json_schema: str | Mapping[str, Any] | None
    logprobs: int | None
    on_progress: Callable[[str, int, int], object]


class GenerateKeywords(SamplerKeywords, RepliesKeywords, total=False):
    """What ``TextModel.generate`` takes besides the prompt and ``n``, which decides what it returns."""

    tokens: Sequence[int] | None
    raw: bool
    ignore_eos: bool
    seed: int | None
    reuse: bool
    timeout: float | None
    on_notice: Callable[[str], object]


class ReplyKeywords(RepliesKeywords, total=False):
    """What a single reply is asked for besides that; see ``ReplyRequest``."""

    timeout: float | None
    on_notice: Callable[[str], object]
    written: Sequence[int]
    drawn: Mapping[str, float]
