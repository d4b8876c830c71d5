"""How often a smaller model picks what the target has picked, on the target's own text.

Teacher-forced: the smaller model reads what the target wrote and picks every token of it again, with the same noise, as
a drafter does that drafts one token at a time. Works on any models that share a vocabulary, whatever engine opened
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree

__all__ = ["Acceptance", "Written", "acceptance", "rows_after", "write"]


@dataclass(frozen=True, kw_only=True)
class Written:
    """A prompt and the reply that the target wrote to it with these settings, its seed among them."""

    settings: SamplerSettings
    prompt: tuple[int, ...]
    reply: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Share of the target's tokens that a model picks, of so many."""

    share: float
    n_tokens: int


def write(
    target: TextPath,
    prompts: Iterable[Sequence[int]],
    settings: SamplerSettings,
    *,
    ends: Callable[[int], bool],
    max_tokens: int = 64,
) -> Iterator[Written]:
    """Let the target reply to prompts of token ids; empty ones and those that leave no room are left out.

    Args:
        settings: of target and drafters alike; every prompt adds its number to the seed.
        ends: whether a token ends a reply.
    """
    for number, prompt in enumerate(prompts):
        if not 0 < len(prompt) <= target.n_ctx - max_tokens:
            continue
        own = replace(settings, seed=settings.seed + number)
        sampler, text = Sampler(own, prompt), list(prompt)
        target.rollback(0)
        target.prefill(text[:-1])
        for _ in range(max_tokens):
            row = target.decode(Tree.sequence(text[-1:]))[0]
            token = sampler.pick(row, text)
            target.keep([0])
            text.append(token)
            if ends(token):
                break
        yield Written(settings=own, prompt=tuple(prompt), reply=tuple(text[len(prompt) :]))


def acceptance(model: TextPath, texts: Iterable[Written]) -> Acceptance:
    """Share of the replies' tokens that a model picks where they stand."""
    right = total = 0
    for written in texts:
        text = [*written.prompt, *written.reply]
        sampler, first = Sampler(written.settings, written.prompt).over(model.kept), len(written.prompt)
        for place, row in enumerate(rows_after(model, text[:-1], first - 1), start=first):
            right += sampler.pick(row, text[:place]) == text[place]
            total += 1
    return Acceptance(share=right / max(1, total), n_tokens=total)


def rows_after(model: TextPath, tokens: Sequence[int], first: int = 0) -> Logits:
    """Rows after ``tokens[first]`` and each later token of a text, ``[n - first, n_vocab]``."""
    model.rollback(0)
    if first:
        model.prefill(tokens[:first])
    rows = np.empty((len(tokens) - first, model.n_vocab), np.float32)
    width = model.capabilities.max_rows
    for begin in range(first, len(tokens), width):
        some = list(tokens[begin : begin + width])
        rows[begin - first : begin - first + len(some)] = model.decode(Tree.sequence(some))
        model.keep(range(len(some)))
    return rows
