"""Tokens per second of every way to speculate, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from edge_spec.model import TextModel

__all__ = ["Speed", "bench"]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What one mode did.

    Attributes:
        tokens_per_s: median over the runs; prompts are not counted, all else is.
        ratio: median of the ratios to plain decoding, run by run, so that a drifting machine cancels out.
        mean_length: mean accepted length, the bonus included.
        acceptance: share of the drafted tokens that became text.
        draft_share, verify_share: shares of the time.
    """

    mode: str
    tokens_per_s: float
    ratio: float
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
    """Let all modes write the same prompts in turn: off, A, B, off, A, B, ... after one run each to warm up.

    Args:
        open_model: opens the model in the mode of that name; all stay open side by side.
        on_run: called after every run.
        generate: further arguments of ``TextModel.generate``.
    """
    modes = ["off", *(mode for mode in modes if mode != "off")]
    rates: dict[str, list[float]] = {mode: [] for mode in modes}
    counts: dict[str, list[float]] = {mode: [0.0] * 7 for mode in modes}
    with ExitStack() as opened:
        models = {mode: opened.enter_context(open_model(mode)) for mode in modes}
        for turn in range(-1, rounds):
            for number, prompt in enumerate(prompts[:1] if turn < 0 else prompts):
                for mode, model in models.items():
                    generation = model.generate(prompt, max_tokens=max_tokens, seed=seed + number, **generate)
                    generation.read()
                    on_run()
                    if turn >= 0:
                        done = generation.statistics
                        rates[mode].append(done.tokens_per_s)
                        now = (
                            done.tokens,
                            done.rounds,
                            done.accepted,
                            done.drafted,
                            done.decode_s,
                            done.draft_s,
                            done.verify_s,
                        )
                        counts[mode] = [old + new for old, new in zip(counts[mode], now, strict=True)]
    for mode in modes:
        tokens, n_rounds, accepted, drafted, total_s, draft_s, verify_s = counts[mode]
        yield Speed(
            mode=mode,
            tokens_per_s=median(rates[mode]),
            ratio=median(rate / plain for rate, plain in zip(rates[mode], rates["off"], strict=True)),
            mean_length=tokens / n_rounds,
            acceptance=accepted / drafted if drafted else 0.0,
            draft_share=draft_s / total_s,
            verify_share=verify_s / total_s,
        )
