"""What a drafter brings on this device: acceptance on prompts that it has not learned from, and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edge_spec.engines.base import Engine
from edge_spec.evaluation.acceptance import Written, acceptance, write
from edge_spec.evaluation.bench import bench
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.loading import load
from edge_spec.models import ModelFile, inspect, kept_tokens
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.trimmed_model import TrimmedModel
from edge_spec.training.drafter.opened import opened, opened_drafter

__all__ = ["CHAIN", "KINDS", "measure"]

KINDS = {"greedy": 0.0, "temperature 0.8": 0.8}
CHAIN = 4
_SPEED_PROMPTS, _SPEED_ROUNDS = 6, 2


def measure(
    target: ModelFile,
    draft: Path,
    prompts: Sequence[str],
    on: Engine,
    *,
    max_tokens: int,
    cache_dir: Path | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """By kind of text: ``share`` (acceptance of the first token) of ``tokens``, and a list of ``speeds`` by mode.

    Args:
        max_tokens: of each reply.
    """
    found: dict[str, Any] = {}
    n_ctx = 4 * max_tokens + 512
    with opened(target, on, n_ctx, cache_dir=cache_dir) as (model, tokenizer):
        builder = PromptBuilder(tokenizer, target.chat_template, model.n_vocab)
        asked = [builder.tokens_of(prompt) for prompt in prompts]
        texts = {
            kind: list(
                write(
                    model, asked, SamplerSettings(temperature=temperature), ends=tokenizer.ends, max_tokens=max_tokens
                )
            )
            for kind, temperature in KINDS.items()
        }
    file = inspect(draft)
    kept = kept_tokens(target, file)
    assert kept is not None
    with opened_drafter(target, file, on, n_ctx, cache_dir=cache_dir) as (inner, reader):
        drafter = TrimmedModel(inner, kept)
        for kind, those in texts.items():
            accepted = acceptance(drafter, those if reader is None else _read_by(reader, those))
            found[kind] = {"share": accepted.share, "tokens": accepted.n_tokens}
            say(f"acceptance, {kind}: {accepted.share:.3f} of {accepted.n_tokens:,} tokens")
    for kind, temperature in KINDS.items():
        speeds = bench(
            lambda mode: load(
                target.path,
                draft=draft,
                speculation=mode,
                engine=on.name,
                draft_limit=CHAIN if mode == "sequence" else None,
                n_ctx=n_ctx,
                cache_dir=cache_dir,
            ),
            prompts[:_SPEED_PROMPTS],
            modes=("sequence", "auto"),
            rounds=_SPEED_ROUNDS,
            max_tokens=max_tokens,
            temperature=temperature,
        )
        found[kind]["speeds"] = [vars(speed) for speed in speeds]
        for speed in found[kind]["speeds"]:
            say(f"{speed['mode']}, {kind}: {speed['tokens_per_s']:.1f} tokens/s, {speed['speed_up']:.2f}x")
    return found


def _read_by(target: LanguageModel, texts: Iterable[Written]) -> Iterator[Written]:
    """Texts, each of which the target has read when it comes: a head needs the rows of what it looks back on."""
    for written in texts:
        target.rollback(0)
        target.prefill([*written.prompt, *written.reply])
        yield written
