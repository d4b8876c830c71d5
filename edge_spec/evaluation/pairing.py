"""Find the best drafter for a model on this device, by acceptance and speed-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from edge_spec.evaluation.bench import keep_gain, speed_of
from edge_spec.generation.reply import Reply
from edge_spec.model import TextModel

__all__ = ["Pairing", "best_of", "pairings"]

Draft = TypeVar("Draft")


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """The measured acceptance and speed-up of a drafter.

    Attributes:
        acceptance: share of its tokens that the target accepts where it drafts sequences.
        mean_length: tokens per round there.
        speed_up: of the automatic mode with this drafter, against plain decoding.
        interval: 95 % interval of ``speed_up``.
        drafted: tokens that the automatic mode drafted.
        tokens_per_s: of the automatic mode with this drafter.
        same_text: whether every reply has the tokens of plain decoding.
    """

    acceptance: float
    mean_length: float
    speed_up: float
    interval: tuple[float, float]
    drafted: int
    tokens_per_s: float
    same_text: bool


def pairings(
    drafts: Sequence[Draft],
    open_model: Callable[[Draft, str], TextModel],
    prompts: Sequence[str],
    *,
    rounds: int = 3,
    max_tokens: int = 96,
    seed: int = 1,
    remember: bool = True,
) -> Iterator[tuple[Draft, Pairing]]:
    """Measure one drafter after the other. The target is open once at any time.

    Sequences are written once, to count what is accepted. Then the automatic mode and plain decoding, which is the same
    model with a limit of no drafts, write all prompts in turn.

    Args:
        open_model: opens the target with a drafter in a mode.
        remember: keep what the automatic mode brings with each drafter, for plans.
    """

    def written(model: TextModel, next_limit: Callable[[], int] | None = None) -> list[Reply]:
        replies = []
        for number, prompt in enumerate(prompts):
            settings = model.sampler_settings(seed=seed + number)
            reply = model.reply(model.prompt_of(prompt), settings, max_tokens=max_tokens, next_limit=next_limit)
            reply.read()
            replies.append(reply)
        return replies

    for draft in drafts:
        with open_model(draft, "sequence") as model:
            sequences = written(model)
        plain: list[Reply] = []
        auto: list[Reply] = []
        with open_model(draft, "auto") as model:
            written(model)  # to warm up, and for the chooser to learn the costs
            for _ in range(rounds):
                plain += written(model, lambda: 0)
                auto += written(model)
            found = speed_of("auto", auto, plain=plain, n_prompts=len(prompts))
            if remember:
                keep_gain(model, found, auto, n_prompts=len(prompts))
        sequence = speed_of("sequence", sequences, plain=plain[: len(prompts)])
        yield (
            draft,
            Pairing(
                acceptance=sequence.acceptance,
                mean_length=sequence.mean_length,
                speed_up=found.speed_up,
                interval=found.interval,
                drafted=found.drafted,
                tokens_per_s=found.tokens_per_s,
                same_text=sequence.same_text and found.same_text,
            ),
        )


def best_of(found: Sequence[tuple[Draft, Pairing]]) -> tuple[Draft, Pairing] | None:
    """Return the drafter with the highest speed-up; None if none is significantly faster than plain decoding.

    A single run leaves no interval, and proves nothing; nor does one without drafts.
    """
    shown = [each for each in found if each[1].same_text and each[1].drafted]
    faster = [each for each in shown if 1 < each[1].interval[0] < each[1].interval[1]]
    return max(faster, key=lambda each: each[1].speed_up, default=None)
