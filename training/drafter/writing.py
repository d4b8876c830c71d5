"""The target's answers, each token with the 64 likeliest ones and their log probabilities.

Many answers are written at once: a decode of several rows costs little more than one of a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edge_spec.engines.base import HiddenRows
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.candidates import head
from edge_spec.speculation.pool import TILE
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree

__all__ = ["N_LIKELIEST", "TEMPERATURES", "Answer", "AnswerWriter", "Question", "likeliest", "texts_of"]

N_LIKELIEST = 64

TEMPERATURES = (0.0, 0.8, 1.0)
"""Of the answers to each prompt: a third is greedy."""


@dataclass(frozen=True)
class Question:
    """A prompt in token ids, of two or more tokens, and the temperatures of the answers that it gets."""

    prompt: Sequence[int]
    seed: int
    temperatures: Sequence[float] = TEMPERATURES


@dataclass
class Answer:
    """An answer in token ids, and for each of them what was likely in its place: ids and log probabilities.

    Attributes:
        hidden: the hidden states of the prompt and of all its tokens but the last, which nothing follows; None where
            they were not asked for.
    """

    tokens: list[int] = field(default_factory=list)
    likeliest: list[npt.NDArray[np.int64]] = field(default_factory=list)
    logs: list[npt.NDArray[np.float32]] = field(default_factory=list)
    hidden: npt.NDArray[np.float16] | None = None


def texts_of(model: TextPath, n_tokens: int) -> list[TextPath]:
    """Return as many texts of so many tokens as one decode can advance."""
    pool = model.pool
    n = min(pool.capabilities.max_rows, pool.max_paths) if pool.capabilities.widths else 1
    if n > 1:
        pool.resize(pool.n_cells + n * (n_tokens + TILE))
    return [pool.path() for _ in range(n)]


class AnswerWriter:
    """Lets a target write.

    Args:
        texts: of the target, see ``texts_of``.
        ends: whether a token ends an answer.
        hidden: of the target, where answers come with their hidden states.
    """

    def __init__(
        self, texts: Sequence[TextPath], ends: Callable[[int], bool], hidden: HiddenRows | None = None
    ) -> None:
        self._texts = list(texts)
        self._ends = ends
        self._hidden = hidden

    def answers(self, questions: Iterable[Question], *, max_tokens: int) -> list[list[Answer]]:
        """An answer to each question at each of its temperatures, the last token the one that ends it, unless it is
        cut. It is the one that would be written alone."""
        found: list[list[Answer]] = []
        waiting: list[_Text] = []
        for question in questions:
            found.append([])
            for number, temperature in enumerate(question.temperatures):
                settings = SamplerSettings(temperature=temperature, seed=question.seed, attempt=number)
                text = _Text(question.prompt, Sampler(settings, question.prompt))
                found[-1].append(text.answer)
                waiting.append(text)
        waiting.reverse()
        active: dict[int, _Text] = {}
        while waiting or active:
            for slot in range(len(self._texts)):
                if slot not in active and waiting:
                    self._begin(slot, waiting.pop(), active)
            for (slot, text), row in zip(list(active.items()), self._decode(active), strict=True):
                token = text.write(row)
                if self._ends(token) or len(text.answer.tokens) == max_tokens:
                    del active[slot]
                    if self._hidden is not None:
                        path = self._texts[slot]
                        text.answer.hidden = self._hidden.on(path)[0 : path.n_past].copy()
        return found

    def _begin(self, slot: int, text: _Text, active: dict[int, _Text]) -> None:
        """Read a prompt, or fork the text in which another answer to it is written."""
        source = next((other for other, each in active.items() if each.prompt is text.prompt), None)
        self._texts[slot].rollback(0)
        if source is None:
            self._texts[slot].prefill(text.prompt[:-1])
        else:
            self._texts[slot].close()
            self._texts[slot] = self._texts[source].fork(len(text.prompt) - 1)
        active[slot] = text

    def _decode(self, active: Mapping[int, _Text]) -> list[npt.NDArray[np.float32]]:
        """Return the row after each text, given by its number."""
        trees = [(self._texts[slot], Tree.sequence([text.last])) for slot, text in active.items()]
        rows = trees[0][0].pool.decode(trees)
        for path, _ in trees:
            path.keep([0])
        return [row for (row,) in rows]


def likeliest(row: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the likeliest tokens of a row of logits, and their log probabilities."""
    ids, logits = head(row, N_LIKELIEST)
    top = logits[0]
    return ids, logits - top - np.log(np.exp(row - top).sum(dtype=np.float32))


class _Text:
    """An answer that is being written."""

    def __init__(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self.prompt = prompt
        self.answer = Answer()
        self._sampler = sampler
        self._text = list(prompt)

    @property
    def last(self) -> int:
        """The token that is decoded next."""
        return self._text[-1]

    def write(self, row: npt.NDArray[np.float32]) -> int:
        """Draw the next token, and note what was likely."""
        token = self._sampler.pick(row, self._text)
        ids, logs = likeliest(row)
        self._text.append(token)
        self.answer.tokens.append(token)
        self.answer.likeliest.append(ids)
        self.answer.logs.append(logs)
        return token
