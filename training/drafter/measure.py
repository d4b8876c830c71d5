"""What a drafter brings on this device: acceptance on prompts that it has not learned from, and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edge_spec.engines.base import Engine
from edge_spec.evaluation.bench import bench
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.loading import load, possible_modes
from edge_spec.model import TextModel
from edge_spec.models import ModelFile, inspect, kept_tokens
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.modes import MODES, DraftModels, Mode, mode_of
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.training.acceptance import Written, acceptance, write
from edge_spec.training.drafter.opened import opened, opened_drafter

__all__ = ["CHAIN", "FORCED", "KINDS", "TREE", "measure"]

KINDS = {"greedy": 0.0, "temperature 0.8": 0.8}
_SPEED_PROMPTS, _GAIN_PROMPTS, _ROUNDS = 6, 12, 2
_WITHOUT = ("off", "ngram")


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
    """Return what a drafter brings, by kind of text.

    Returns:
        ``share`` (acceptance of the first token) of ``tokens``; ``tokens_per_round`` of chains and trees of a fixed
        size; ``step``, the time of a draft step in steps of the target; a list of ``speeds`` by mode; and ``gain``, how
        much faster ``auto`` is with the drafter than without it.

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
    with opened_drafter(target, file, on, n_ctx, cache_dir=cache_dir) as (drafter, reader):
        drafter.pool.trim(kept)
        for kind, those in texts.items():
            accepted = acceptance(drafter, those if reader is None else _read_by(reader, those))
            found[kind] = {"share": accepted.share, "tokens": accepted.n_tokens}
            say(f"acceptance, {kind}: {accepted.share:.3f} of {accepted.n_tokens:,} tokens")
    opened_with = _Opened(target, draft, on, n_ctx, cache_dir)
    modes = opened_with.modes()
    for kind, temperature in KINDS.items():
        asked_for: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "rounds": _ROUNDS}
        speeds = {
            speed.mode: speed for speed in bench(opened_with.mode, prompts[:_SPEED_PROMPTS], modes=modes, **asked_for)
        }
        chain = speeds[CHAIN]
        found[kind] |= {
            "tokens_per_round": {name: speeds[name].mean_length for name in FORCED if name in speeds},
            "step": chain.draft_share * chain.mean_length / chain.total_speed_up / FORCED[CHAIN].limit,
            "speeds": [vars(speed) for name, speed in speeds.items() if name not in FORCED],
        }
        for speed in found[kind]["speeds"]:
            say(f"{speed['mode']}, {kind}: {speed['tokens_per_s']:.1f} tokens/s, {speed['speed_up']:.2f}x")
        # What plain decoding is to others is here what the target would write with if there were no such drafter.
        _, gain = bench(opened_with.new_or_old, prompts[:_GAIN_PROMPTS], modes=("auto",), **asked_for)
        found[kind]["gain"] = {"ratio": gain.speed_up, "interval": gain.interval, "total": gain.total_speed_up}
        say(f"auto with it over auto without it, {kind}: {gain.speed_up:.2f}x")
    return found


@dataclass(frozen=True)
class _Opened:
    """Opens the target with the drafter, in modes."""

    target: ModelFile
    draft: Path
    on: Engine
    n_ctx: int
    cache_dir: Path | None

    def modes(self) -> list[str]:
        """Return those that are timed; trees where the models take them."""
        trees = "tree" in possible_modes(self.target.path, draft=self.draft, engine=self.on.name)
        return ["ngram", "sequence", *(["tree"] if trees else []), "auto", CHAIN, *([TREE] if trees else [])]

    def mode(self, name: str) -> TextModel:
        needs = () if name in _WITHOUT else ("draft",)
        return self._load(FORCED.get(name, name), self.draft if needs else None)

    def new_or_old(self, name: str) -> TextModel:
        """``auto``, with the drafter or as it is without one."""
        return self.mode("auto") if name == "auto" else self._load(mode_of("auto", given=frozenset()), None)

    def _load(self, mode: str | Mode, draft: Path | None) -> TextModel:
        limit = mode.limit if isinstance(mode, Mode) and mode in FORCED.values() else None
        return load(
            self.target.path,
            draft=draft,
            speculation=mode,
            engine=self.on.name,
            draft_limit=limit,
            n_ctx=self.n_ctx,
            cache_dir=self.cache_dir,
        )


def _forced(name: str, limit: int, **shape: int) -> Mode:
    """Return a mode that drafts as much as its limit in every round, however little it expects of that."""

    def build(models: DraftModels) -> Drafter:
        return ModelDrafter(models.draft(trees=name == "tree"), **shape)

    return replace(MODES[name], build=build, limit=limit)


CHAIN, TREE = "chain of 4", "tree of 8"
FORCED = {CHAIN: _forced("sequence", 4), TREE: _forced("tree", 8, width=3)}
"""What acceptance is told of, besides the first token."""


def _read_by(target: TextPath, texts: Iterable[Written]) -> Iterator[Written]:
    """Texts, each of which the target has read when it comes: a head needs the rows of what it looks back on."""
    for written in texts:
        target.rollback(0)
        target.prefill([*written.prompt, *written.reply])
        yield written
