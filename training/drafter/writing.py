"""The target's answers, each token with the 64 likeliest ones and their log probabilities.

Many answers are written at once: a decode of several rows costs little more than one of a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edge_spec.engines.base import HiddenRows
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.candidates import head
from edge_spec.speculation.language_model import LanguageModel, Logits
from edge_spec.speculation.texts import Texts, TextsModel
from edge_spec.speculation.tree import Tree

__all__ = ["N_LIKELIEST", "TEMPERATURES", "Answer", "AnswerWriter", "Question", "likeliest", "slots_of"]

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


@contextmanager
def slots_of(model: LanguageModel, n_tokens: int, hidden: HiddenRows | None = None) -> Iterator[Texts]:
    """As many slots for texts of so many tokens as one decode can advance; a model that cannot has one.

    Args:
        hidden: of the model, where the slots are to keep their own.
    """
    if isinstance(model, TextsModel) and model.most_texts > 1:
        with closing(model.texts(model.most_texts, n_tokens, hidden=hidden is not None)) as texts:
            yield texts
    else:
        yield _Lone(model, hidden)


class AnswerWriter:
    """Lets a target write.

    Args:
        slots: of the target.
        ends: whether a token ends an answer.
        hidden: whether answers come with their hidden states, which the slots must keep.
    """

    def __init__(self, slots: Texts, ends: Callable[[int], bool], *, hidden: bool = False) -> None:
        self._slots = slots
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
            for slot in range(self._slots.n_slots):
                if slot not in active and waiting:
                    self._begin(slot, waiting.pop(), active)
            rows = self._slots.decode({slot: text.last for slot, text in active.items()})
            for (slot, text), row in zip(list(active.items()), rows, strict=True):
                token = text.write(row)
                if self._ends(token) or len(text.answer.tokens) == max_tokens:
                    del active[slot]
                    if self._hidden:
                        text.answer.hidden = self._slots.hidden_rows(slot).copy()
        return found

    def _begin(self, slot: int, text: _Text, active: dict[int, _Text]) -> None:
        """Read a prompt, or copy it from where another answer to it is written."""
        n = len(text.prompt) - 1
        source = next((other for other, each in active.items() if each.prompt is text.prompt), None)
        if source is not None:
            self._slots.copy(source, slot, n)
        else:
            self._slots.rollback(slot, 0)
            self._slots.read(slot, text.prompt[:-1])
        active[slot] = text


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


class _Lone:
    """The text of a model as the only slot."""

    n_slots = 1

    def __init__(self, model: LanguageModel, hidden: HiddenRows | None) -> None:
        self._model = model
        self._hidden = hidden

    def read(self, slot: int, tokens: Sequence[int]) -> None:
        self._model.prefill(tokens)

    def copy(self, source: int, slot: int, n: int) -> None:
        raise AssertionError("there is one slot")

    def rollback(self, slot: int, n: int) -> None:
        self._model.rollback(n)

    def decode(self, tokens: Mapping[int, int]) -> Logits:
        rows = self._model.decode(Tree.sequence(tokens.values()))
        self._model.keep([0])
        return rows

    def hidden_rows(self, slot: int) -> npt.NDArray[np.float16]:
        if self._hidden is None:
            raise ValueError("no hidden states are kept")
        return self._hidden[0 : self._model.n_past]

    def close(self) -> None:
        """The model is closed by whoever opened it."""
