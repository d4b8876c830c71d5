"""Find the best drafter for a model on this device, by acceptance and speed-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from edge_spec.evaluation.bench import Speed, keep_gain, speed_of
from edge_spec.generation.reply import Reply
from edge_spec.model import TextModel

__all__ = ["TOLD", "best_of", "pairings"]

Draft = TypeVar("Draft")

TOLD = ("acceptance", "mean_length", "speed_up", "interval", "drafted", "tokens_per_s", "same_text")
"""The fields of a drafter's speed that are printed and kept."""


def pairings(
    drafts: Sequence[Draft],
    open_model: Callable[[Draft, str], TextModel],
    prompts: Sequence[str],
    *,
    rounds: int = 3,
    max_tokens: int = 96,
    seed: int = 1,
    remember: bool = True,
) -> Iterator[tuple[Draft, Speed]]:
    """Measure one drafter after the other. The target is open once at any time.

    Sequences are written once, to count what is accepted. Then the automatic mode and plain decoding, which is the same
    model with a limit of no drafts, write all prompts in turn.

    Args:
        open_model: opens the target with a drafter in a mode.
        remember: keep what the automatic mode brings with each drafter, for plans.

    Yields:
        Each drafter, and how fast the automatic mode is with it; but what is accepted, and how many tokens a round has,
        where it drafts sequences.
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
        same_text = sequence.same_text and found.same_text
        of_both = replace(found, acceptance=sequence.acceptance, mean_length=sequence.mean_length, same_text=same_text)
        yield draft, of_both


def best_of(found: Sequence[tuple[Draft, Speed]]) -> tuple[Draft, Speed] | None:
    """Return the drafter with the highest speed-up; None if none is significantly faster than plain decoding.

    A single run leaves no interval, and proves nothing; nor does one without drafts.
    """
    shown = [each for each in found if each[1].same_text and each[1].drafted]
    faster = [each for each in shown if 1 < each[1].interval[0] < each[1].interval[1]]
    return max(faster, key=lambda each: each[1].speed_up, default=None)
