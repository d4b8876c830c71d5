"""Replies without a model around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_spec.generation.context import ModelAccess
from edge_spec.generation.options import REPLY_OPTIONS, ReplyOptions
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
    """A reply of a speculator; ``asked`` are further fields of its request, and options."""
    return Reply(ModelAccess(speculator, vocabulary), request_of(prompt, settings, **asked), policy)


def request_of(prompt: Sequence[int], settings: SamplerSettings, **asked: Any) -> ReplyRequest:
    """A request; ``asked`` are further fields of it, and options."""
    options = ReplyOptions.of({name: asked.pop(name) for name in asked.keys() & REPLY_OPTIONS.keys() - {"grammar"}})
    return ReplyRequest(prompt=prompt, settings=settings, options=options, **asked)
