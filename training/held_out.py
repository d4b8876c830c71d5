"""Acceptance as the card reports it: of smaller models on the target's replies to held-out prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edge_spec.sampling import SamplerSettings
from edge_spec.training.acceptance import acceptance, write
from edge_spec.training.corpus import clean, read_records, spans_of
from edge_spec.training.exported import opened

__all__ = ["acceptance_of", "prompts_of"]

_KINDS = {"greedy": 0.0, "temperature 0.8": 0.8}


def prompts_of(path: Path, n: int) -> list[str]:
    """At most ``n`` prompts from records: conversations up to an answer, other texts by their first words.

    Records are taken evenly over the file. The answer is the first of a conversation in one record, the second in the
    next.
    """
    records = list(read_records(path))
    prompts = []
    for number, record in enumerate(records[:: max(1, len(records) // n)][:n]):
        if "turns" not in record:
            prompts.append(" ".join(clean(record["text"]).split(" ")[:40]))
            continue
        turns = [{"role": turn["role"], "text": clean(turn["text"])} for turn in record["turns"]]
        answers = [place for place, turn in enumerate(turns) if turn["role"] == "assistant" and place]
        if answers:
            before = turns[: answers[number % min(2, len(answers))]]
            prompts.append("".join(span.text for span in spans_of(before, answer=True)))
    return prompts


def acceptance_of(
    target: Path,
    others: Mapping[str, Path],
    evaluation: Path,
    *,
    n_prompts: int,
    n_ctx: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """For each smaller model its share of the target's tokens, on greedy text and on text drawn at temperature 0.8.

    Other sampler settings are the package's defaults.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in others}
    with opened(target, n_ctx) as (model, tokenizer):
        prompts = [tokenizer.tokenize(prompt, add_special=False) for prompt in prompts_of(evaluation, n_prompts)]
        texts = {
            kind: list(write(model, prompts, SamplerSettings(temperature=temperature), ends=tokenizer.ends))
            for kind, temperature in _KINDS.items()
        }
    for name, path in others.items():
        with opened(path, n_ctx) as (model, _):
            for kind, those in texts.items():
                share = acceptance(model, those)
                found[name][kind] = {"share": share.share, "tokens": share.n_tokens}
                say(f"acceptance: {name}, {kind}: {share.share:.3f}")
    return found
