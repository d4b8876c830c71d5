"""The target's answers, each token with the 64 likeliest ones and their log probabilities.

Answers to one prompt are written at once, as branches behind it: a decode of several rows costs little more than one
of a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.candidates import head
from edge_spec.speculation.followed_text import common_prefix
from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.tree import Tree

__all__ = ["N_LIKELIEST", "TEMPERATURES", "Answer", "AnswerWriter"]

N_LIKELIEST = 64

TEMPERATURES = (0.0, 0.8, 1.0)
"""Of the answers to each prompt: a third is greedy."""


@dataclass
class Answer:
    """An answer in token ids, and for each of them what was likely in its place: ids and log probabilities."""

    tokens: list[int] = field(default_factory=list)
    likeliest: list[npt.NDArray[np.int64]] = field(default_factory=list)
    logs: list[npt.NDArray[np.float32]] = field(default_factory=list)


class AnswerWriter:
    """Lets a target write.

    Args:
        model: opened with trees, if it can; else answers are written one after the other.
        ends: whether a token ends an answer.
    """

    def __init__(self, model: LanguageModel, ends: Callable[[int], bool]) -> None:
        self._model = model
        self._ends = ends
        self._read: list[int] = []

    def answers(
        self, prompt: Sequence[int], *, temperatures: Sequence[float] = TEMPERATURES, max_tokens: int, seed: int
    ) -> list[Answer]:
        """An answer at each temperature, the last token the one that ends it, unless it is cut."""
        samplers = [
            Sampler(SamplerSettings(temperature=temperature, seed=seed, attempt=number), prompt)
            for number, temperature in enumerate(temperatures)
        ]
        if self._model.capabilities.takes_trees:
            return self._branches(prompt, samplers, max_tokens)
        return [self._branches(prompt, [sampler], max_tokens)[0] for sampler in samplers]

    def room(self, n_answers: int, max_tokens: int) -> int:
        """The longest prompt that leaves room for so many answers."""
        if not self._model.capabilities.takes_trees:
            n_answers = 1
        return self._model.n_ctx - n_answers * max_tokens - 1

    def _branches(self, prompt: Sequence[int], samplers: Sequence[Sampler], max_tokens: int) -> list[Answer]:
        model, answers = self._model, [Answer() for _ in samplers]
        shared = common_prefix(self._read, prompt[:-1])
        model.rollback(min(shared, model.n_past))
        model.prefill(prompt[model.n_past : -1])
        self._read = list(prompt[:-1])
        tokens, parents = [prompt[-1]], [-1]
        row = model.decode(Tree.sequence(tokens))[0]
        places = dict.fromkeys(range(len(samplers)), 0)
        rows = dict.fromkeys(places, row)
        while places:
            first = len(tokens)
            for number in list(places):
                answer = answers[number]
                token = samplers[number].pick(rows[number], [*prompt, *answer.tokens])
                _note(answer, rows[number], token)
                if self._ends(token) or len(answer.tokens) == max_tokens:
                    del places[number]
                    continue
                tokens.append(token)
                parents.append(places[number])
                places[number] = len(tokens) - 1
            if len(tokens) > first:
                found = model.decode(Tree(tuple(tokens), tuple(parents)))
                rows = {number: found[place - first] for number, place in places.items()}
        model.rollback(model.n_past)
        return answers


def _note(answer: Answer, row: npt.NDArray[np.float32], token: int) -> None:
    ids, logits = head(row, N_LIKELIEST)
    top = logits[0]
    answer.tokens.append(token)
    answer.likeliest.append(ids)
    answer.logs.append(logits - top - np.log(np.exp(row - top).sum(dtype=np.float32)))
