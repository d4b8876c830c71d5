"""Replies without a model around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_spec.generation.context import ModelAccess
from edge_spec.generation.reply import Reply
from edge_spec.generation.request import ReplyRequest
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.policy import Policy


def reply_of(
    speculator: Speculator,
    policy: Policy,
    vocabulary: Any,
    prompt: Sequence[int],
    settings: SamplerSettings,
    **asked: Any,
) -> Reply:
    """A reply of a speculator; ``asked`` are further fields of its request."""
    return Reply(ModelAccess(speculator, vocabulary), ReplyRequest(prompt=prompt, settings=settings, **asked), policy)
