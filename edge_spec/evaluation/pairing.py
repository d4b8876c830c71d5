"""Which drafter is the best for a model on this device: how often it is right, and what that is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from edge_spec.evaluation.bench import bench
from edge_spec.model import TextModel

__all__ = ["Pairing", "best_of", "pairings"]

Draft = TypeVar("Draft")


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """How a drafter does.

    Attributes:
        acceptance: share of its tokens that the target accepts where it drafts sequences.
        mean_length: tokens per round there.
        speed_up: of the automatic mode with this drafter, against plain decoding.
        interval: 95 % interval of ``speed_up``.
        tokens_per_s: of the automatic mode with this drafter.
        same_text: whether every reply has the tokens of plain decoding.
    """

    acceptance: float
    mean_length: float
    speed_up: float
    interval: tuple[float, float]
    tokens_per_s: float
    same_text: bool


def pairings(
    drafts: Sequence[Draft],
    open_model: Callable[[Draft, str], TextModel],
    prompts: Sequence[str],
    **options: Any,
) -> Iterator[tuple[Draft, Pairing]]:
    """Try one drafter after the other: plain decoding, sequences and the automatic mode write the same prompts.

    Args:
        open_model: opens the target with a drafter in a mode; three are open side by side.
        options: further ones of ``bench``.
    """
    for draft in drafts:
        speeds = bench(partial(open_model, draft), prompts, modes=("sequence", "auto"), **options)
        by_mode = {speed.mode: speed for speed in speeds}
        sequence, auto = by_mode["sequence"], by_mode["auto"]
        yield (
            draft,
            Pairing(
                acceptance=sequence.acceptance,
                mean_length=sequence.mean_length,
                speed_up=auto.speed_up,
                interval=auto.interval,
                tokens_per_s=auto.tokens_per_s,
                same_text=sequence.same_text and auto.same_text,
            ),
        )


def best_of(found: Sequence[tuple[Draft, Pairing]]) -> tuple[Draft, Pairing] | None:
    """The drafter with the highest speed-up; None if none is faster than plain decoding beyond doubt.

    A single run leaves no interval, and proves nothing.
    """
    faster = [each for each in found if 1 < each[1].interval[0] < each[1].interval[1] and each[1].same_text]
    return max(faster, key=lambda each: each[1].speed_up, default=None)
