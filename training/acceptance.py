"""How often a smaller model picks what the target has picked, on the target's own text.

Teacher-forced: the smaller model reads what the target wrote and guesses every token of it, with the same noise, as a
drafter does while drafting one token at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.tree import Tree
from edge_spec.training.corpus import clean, read_records, spans_of
from edge_spec.training.through_llama import Reader

__all__ = ["Text", "agreement", "prompts_of", "sampler_for", "write"]


@dataclass(frozen=True)
class Text:
    """A prompt and what the target wrote, with that seed."""

    seed: int
    prompt: tuple[int, ...]
    reply: tuple[int, ...]


def prompts_of(path: Path, most: int) -> list[str]:
    """Prompts from records: conversations up to an assistant's turn, other texts by their first sentences.

    Records are taken evenly over the file; of the turns it is the first in one record, the second in the next.
    """
    records = list(read_records(path))
    prompts = []
    for number, record in enumerate(records[:: max(1, len(records) // most)][:most]):
        if "turns" not in record:
            prompts.append(" ".join(clean(record["text"]).split(" ")[:40]))
            continue
        turns = [{"role": turn["role"], "text": clean(turn["text"])} for turn in record["turns"]]
        answers = [place for place, turn in enumerate(turns) if turn["role"] == "assistant" and place]
        if answers:
            before = turns[: answers[number % min(2, len(answers))]]
            prompts.append("".join(span.text for span in spans_of(before, answer=True)))
    return prompts


def sampler_for(temperature: float, prompt: Sequence[int], seed: int) -> Sampler:
    """The sampler of target and drafters alike; settings other than the temperature are the package's defaults."""
    return Sampler(SamplerSettings(temperature=temperature, seed=seed), prompt)


def write(target: Reader, prompts: Iterable[str], temperature: float, *, max_run_tokens: int = 64) -> list[Text]:
    """Let the target answer; a reply ends where the target ends it."""
    texts = []
    for seed, prompt in enumerate(prompts):
        tokens = target.weights.tokenize(prompt, add_special=False)
        if not 0 < len(tokens) <= target.model.n_ctx - max_run_tokens:
            continue
        sampler, text = sampler_for(temperature, tokens, seed), list(tokens)
        target.model.rollback(0)
        target.model.prefill(tokens[:-1])
        for _ in range(max_run_tokens):
            row = target.model.decode(Tree.sequence(text[-1:]))[0]
            target.model.keep([0])
            text.append(sampler.pick(row, text))
            if target.weights.ends(text[-1]):
                break
        texts.append(Text(seed, tuple(tokens), tuple(text[len(tokens) :])))
    return texts


def agreement(model: Reader, texts: Iterable[Text], temperature: float) -> Mapping[str, Any]:
    """Share of the replies' tokens that the model picks, and how many there are."""
    right = total = 0
    for text in texts:
        whole = [*text.prompt, *text.reply]
        sampler = sampler_for(temperature, text.prompt, text.seed)
        first = len(text.prompt) - 1
        for place, row in enumerate(model.logits(whole[:-1], first), start=first + 1):
            right += sampler.pick(row, whole[:place]) == whole[place]
            total += 1
    return {"share": right / max(1, total), "tokens": total}
