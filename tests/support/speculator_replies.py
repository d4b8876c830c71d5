"""Replies without a model around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edge_spec.generation.options import REPLY_OPTIONS, ReplyOptions
from edge_spec.generation.reply import Reply
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.scheduler import Scheduler
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.loop import Slot, decode, prepare
from edge_spec.speculation.round import Round
from edge_spec.speculation.target import Target


def reply_of(
    speculator: Slot,
    next_limit: Callable[[], int],
    vocabulary: Any,
    prompt: Sequence[int],
    settings: SamplerSettings,
    **asked: Any,
) -> Reply:
    """A reply of a speculator; ``asked`` are further fields of its request, and options."""
    return Reply(Scheduler(Target(speculator), vocabulary), request_of(prompt, settings, **asked), next_limit)


def request_of(prompt: Sequence[int], settings: SamplerSettings, **asked: Any) -> ReplyRequest:
    """A request; ``asked`` are further fields of it, and options."""
    options = ReplyOptions.of({name: asked.pop(name) for name in asked.keys() & REPLY_OPTIONS.keys() - {"grammar"}})
    return ReplyRequest(prompt=prompt, settings=settings, options=options, **asked)


def step(speculator: Slot, limit: int, ends: Callable[[int], bool] = lambda token: False) -> Round:
    """A round of one text: draft at most so many tokens, decode, walk, keep, learn."""
    prepared = prepare([speculator], [limit])
    done = speculator.finish(prepared[0], decode([speculator], prepared)[0], ends)
    speculator.drafter.learn(done)
    return done
