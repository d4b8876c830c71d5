"""Tokens per second of every mode of speculation, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from edge_spec.model import TextModel
from edge_spec.speculation.statistics import Statistics

__all__ = ["Speed", "bench"]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast one mode is.

    Attributes:
        tokens_per_s: median over the runs; reading prompts is not counted, everything else is.
        speed_up: median of the ratios to plain decoding, run by run, so that a drifting machine cancels out.
        mean_length: mean accepted length, bonus tokens included.
        acceptance: share of the drafted tokens that were accepted.
        draft_share, verify_share: shares of the time.
    """

    mode: str
    tokens_per_s: float
    speed_up: float
    mean_length: float
    acceptance: float
    draft_share: float
    verify_share: float


def bench(
    open_model: Callable[[str], TextModel],
    prompts: Sequence[str],
    *,
    modes: Sequence[str],
    rounds: int = 3,
    max_tokens: int = 128,
    seed: int = 1,
    on_run: Callable[[], None] = lambda: None,
    **generate: Any,
) -> Iterator[Speed]:
    """Let all modes reply to the same prompts in turn: off, A, B, off, A, B, ... after one run each to warm up.

    Args:
        open_model: opens the model in a mode; all stay open side by side.
        on_run: called after every run.
        generate: further arguments of ``TextModel.generate``.
    """
    modes = ["off", *(mode for mode in modes if mode != "off")]
    runs: dict[str, list[Statistics]] = {mode: [] for mode in modes}
    with ExitStack() as opened:
        models = {mode: opened.enter_context(open_model(mode)) for mode in modes}
        for turn in range(-1, rounds):
            for number, prompt in enumerate(prompts[:1] if turn < 0 else prompts):
                for mode, model in models.items():
                    reply = model.generate(prompt, max_tokens=max_tokens, seed=seed + number, **generate)
                    reply.read()
                    on_run()
                    if turn >= 0:
                        runs[mode].append(reply.statistics)
    for mode in modes:
        yield _speed(mode, runs[mode], plain=runs["off"])


def _speed(mode: str, runs: Sequence[Statistics], *, plain: Sequence[Statistics]) -> Speed:
    def total(name: str) -> float:
        return float(sum(getattr(run, name) for run in runs))

    return Speed(
        mode=mode,
        tokens_per_s=median(run.tokens_per_s for run in runs),
        speed_up=median(run.tokens_per_s / off.tokens_per_s for run, off in zip(runs, plain, strict=True)),
        mean_length=total("tokens") / total("rounds"),
        acceptance=total("accepted") / total("drafted") if total("drafted") else 0.0,
        draft_share=total("draft_s") / total("decode_s"),
        verify_share=total("verify_s") / total("decode_s"),
    )
