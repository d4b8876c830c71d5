"""Measure tokens per second of every mode, side by side, and find the best one here."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from edge_spec.controller.measurements import Gain
from edge_spec.evaluation.intervals import interval_of_median
from edge_spec.generation.reply import Reply
from edge_spec.model import TextModel
from edge_spec.speculation.statistics import Statistics

__all__ = ["Speed", "Verdict", "bench", "keep_gain", "speed_of", "verdict_of"]

_LEAST_PROMPTS, _LEAST_TOKENS = 3, 256
"""Measurements over fewer prompts and tokens are not stored."""

_ROLES = {"sequence": "draft", "tree": "draft", "hierarchy": "intermediate"}
"""The role of the model that drafts, by mode."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The measured speed of one mode.

    Attributes:
        tokens_per_s: median over the runs; reading prompts is not counted, everything else is.
        speed_up: median of the ratios to plain decoding of the same prompt in the same round, so that a drifting
            machine cancels out.
        total_speed_up: tokens per second of all runs together, over that of plain decoding. A few prompts whose replies
            copy a lot raise it where the median does not move.
        interval: 95 % interval of ``speed_up``, by resampling the prompts and then the runs of each, see
            ``interval_of_median``. Of one prompt it says nothing of other ones.
        mean_length: mean accepted length, bonus tokens included.
        drafted: how many tokens were drafted.
        acceptance: share of the drafted tokens that were accepted.
        draft_rounds: share of the rounds that drafted.
        draft_share, verify_share, rest_share: shares of the time; the rest is sampling and bookkeeping.
        share_of_limit: what is reached of the speed-up that this acceptance would bring if drafting, verifying further
            rows and bookkeeping took no time, which is tokens per round; the median over the runs. At most
            ``1 - draft_share`` of each run, see ``_share_of_limit``.
        drafter: what drafted most often: ``draft``, ``intermediate``, ``ngram``, or the name of another drafter; empty
            if nothing did.
        shape: of most drafts, ``chain`` or ``tree``; empty if there were none.
        rows: of the target's decodes of drafts, the median; 1 if there were none.
        same_text: whether every reply has the tokens of plain decoding.
        by_category: ``speed_up`` by the category of the prompts; empty where they have none.
    """

    mode: str
    tokens_per_s: float
    speed_up: float
    total_speed_up: float
    interval: tuple[float, float]
    mean_length: float
    drafted: int
    acceptance: float
    draft_rounds: float
    draft_share: float
    verify_share: float
    rest_share: float
    share_of_limit: float
    drafter: str
    shape: str
    rows: float
    same_text: bool
    by_category: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The best mode for a model on this device.

    Attributes:
        best: the fastest mode that was asked for by name; ``off`` if none is significantly faster than plain decoding.
        auto: how fast ``auto`` is; None if it was not timed.
        same_text: whether every reply of every mode has the tokens of plain decoding.
    """

    best: Speed
    auto: Speed | None
    same_text: bool

    def as_json(self) -> dict[str, Any]:
        """Return the values of the best mode for ``--json``, with its name as ``best``."""
        best = {("best" if name == "mode" else name): value for name, value in vars(self.best).items()}
        return {**best, "auto": self.auto.speed_up if self.auto is not None else None, "same_text": self.same_text}


def bench(
    open_model: Callable[[str], TextModel],
    prompts: Sequence[str],
    *,
    modes: Sequence[str],
    categories: Sequence[str] = (),
    rounds: int = 3,
    max_tokens: int = 128,
    seed: int = 1,
    on_run: Callable[[], None] = lambda: None,
    **generate: Any,
) -> Iterator[Speed]:
    """Measure replies of all modes to the same prompts, after one run each to warm up.

    For each prompt of each round the modes reply in a new random order, so that no mode always runs after the same one.
    The speed-up of each mode is remembered for plans.

    Args:
        open_model: opens the model in a mode; all stay open side by side.
        categories: of each prompt; empty strings stand for none.
        seed: of the replies, prompt i uses ``seed + i``, and of the order of the modes.
        on_run: called after every run.
        generate: further arguments of ``TextModel.generate``.
    """
    modes = ["off", *(mode for mode in modes if mode != "off")]
    runs: dict[str, list[Reply]] = {mode: [] for mode in modes}
    order = random.Random(seed)
    with ExitStack() as opened:
        models = {mode: opened.enter_context(open_model(mode)) for mode in modes}
        for turn in range(-1, rounds):
            for number, prompt in enumerate(prompts[:1] if turn < 0 else prompts):
                for mode in order.sample(modes, len(modes)):
                    reply = models[mode].generate(prompt, max_tokens=max_tokens, seed=seed + number, **generate)
                    reply.read()
                    on_run()
                    if turn >= 0:
                        runs[mode].append(reply)
        speeds = [
            speed_of(mode, runs[mode], plain=runs["off"], n_prompts=len(prompts), categories=categories)
            for mode in modes
        ]
        for speed in speeds[1:]:
            keep_gain(models[speed.mode], speed, runs[speed.mode], n_prompts=len(prompts))
    yield from speeds


def keep_gain(model: TextModel, speed: Speed, runs: Sequence[Reply], *, n_prompts: int) -> None:
    """Store the speed-up of a mode for plans, if it drafted, over enough replies.

    Args:
        runs: the replies that its speed was measured by.
    """
    done = [run.statistics for run in runs]
    if speed.drafted and n_prompts >= _LEAST_PROMPTS and sum(run.tokens for run in done) >= _LEAST_TOKENS:
        (low, high), n_rounds = speed.interval, sum(run.rounds for run in done)
        model.keep_gain(
            Gain(speed_up=speed.speed_up, low=low, high=high, drafted=speed.drafted, rounds=n_rounds, mode=speed.mode)
        )


def verdict_of(speeds: Sequence[Speed]) -> Verdict:
    """Return the verdict about the best mode; among equally fast ones the first."""
    by_mode = {speed.mode: speed for speed in speeds}
    named = [speed for speed in speeds if speed.mode not in ("off", "auto") and speed.interval[0] > 1]
    best = max(named, key=lambda speed: speed.speed_up, default=by_mode["off"])
    return Verdict(best=best, auto=by_mode.get("auto"), same_text=all(speed.same_text for speed in speeds))


def speed_of(
    mode: str, runs: Sequence[Reply], *, plain: Sequence[Reply], n_prompts: int = 0, categories: Sequence[str] = ()
) -> Speed:
    """Return the speed of a mode against plain decoding of the same prompts, run by run.

    Args:
        runs, plain: replies to all prompts, then to all of them again, and so on.
        n_prompts: how many prompts there are; 0 if every run has one of its own.
        categories: of each prompt; empty strings stand for none.
    """
    n_prompts = n_prompts or len(runs)
    done, plainly = [run.statistics for run in runs], [run.statistics for run in plain]
    ratios = [run.tokens_per_s / off.tokens_per_s for run, off in zip(done, plainly, strict=True)]
    of_prompt = [ratios[prompt::n_prompts] for prompt in range(n_prompts)]
    by_category: dict[str, list[float]] = {}
    for category, found in zip(categories, of_prompt, strict=True) if categories else ():
        if category:
            by_category.setdefault(category, []).extend(found)

    def total(name: str, runs: Sequence[Statistics] = done) -> float:
        return float(sum(getattr(run, name) for run in runs))

    drafters: Counter[str] = sum((run.drafters for run in done), Counter())
    rows: Counter[int] = sum((run.rows for run in done), Counter())
    draft_share, verify_share = (total(name) / total("decode_s") for name in ("draft_s", "verify_s"))
    return Speed(
        mode=mode,
        tokens_per_s=median(run.tokens_per_s for run in done),
        speed_up=median(ratios),
        total_speed_up=total("tokens") / total("decode_s") * total("decode_s", plainly) / total("tokens", plainly),
        interval=interval_of_median(of_prompt),
        mean_length=total("tokens") / total("rounds"),
        drafted=int(total("drafted")),
        acceptance=total("accepted") / total("drafted") if total("drafted") else 0.0,
        draft_rounds=drafters.total() / total("rounds"),
        draft_share=draft_share,
        verify_share=verify_share,
        rest_share=max(0.0, 1 - draft_share - verify_share),
        share_of_limit=median(map(_share_of_limit, done, plainly)),
        drafter=_ROLES.get(name := max(drafters, key=drafters.__getitem__), name) if drafters else "",
        shape=("tree" if 2 * total("branched") > drafters.total() else "chain") if drafters else "",
        rows=median(rows.elements()) if rows else 1,
        same_text=all(run.token_ids == off.token_ids for run, off in zip(runs, plain, strict=True)),
        by_category={category: median(found) for category, found in by_category.items()},
    )


def _share_of_limit(run: Statistics, plain: Statistics) -> float:
    """Return the share of a run's time that its rounds would have taken as rounds of plain decoding.

    No round is faster without its further rows than plain decoding is: where that seems so, something slowed plain
    decoding meanwhile, and what the rounds took besides drafting stands for it. So the share cannot exceed 1.
    """
    round_s = min(plain.decode_s / plain.tokens, (run.decode_s - run.draft_s) / run.rounds)
    return run.rounds * round_s / run.decode_s
