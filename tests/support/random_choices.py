"""Choices at random: of drafters, and of how far to draft."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.chooser.candidate import Candidate
from edge_spec.speculation.chooser.decider import Decider, DraftedText
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.round import Round
from edge_spec.speculation.tree import EMPTY, Tree


class RandomDecider(Decider):
    """Decides at random: drafter, length and trials.

    Attributes:
        random: draws.
    """

    random = random.Random(0)

    def draft(self, texts: Sequence[DraftedText], limits: Sequence[int], most: int) -> Sequence[Tree]:
        self._last_plain, self._rest = self.n_rounds, 0
        return super().draft(texts, limits, most)

    def _best_size(self, values: Iterable[float]) -> tuple[int, float]:
        return self.random.randint(0, len(list(values))), self.random.uniform(-1, 1)

    def _is_worth_more(self, model: Candidate, value: float, n: int, depth: int, n_ends: int = 1) -> bool:
        return self.random.random() < 0.7

    def _expected_gain(self, model: Candidate) -> float:
        return self.random.uniform(-1, 1)

    def _pays_to_read(self, model: Candidate, gained: float) -> bool:
        return self.random.random() < 0.9

    def _is_due(self, candidate: Candidate) -> bool:
        return self.random.random() < 0.2


class RandomChoices(Chooser):
    """A chooser that decides at random, also whether to draft at all."""

    deciders = RandomDecider

    def __init__(self, drafters: Sequence[Drafter], seed: int) -> None:
        super().__init__(drafters, seconds={1: 1.0, 8: 2.0})
        self._seed = seed
        self._n_drafted = 0
        self._random = RandomDecider.random = random.Random(seed)

    def draft_all(self, drafters: Sequence[Drafter], limits: Sequence[int], most: int) -> Sequence[Tree]:
        # A draft that is asked for twice is the same twice.
        self._random.seed(f"{self._seed} {self._n_drafted}")
        RandomDecider.random = self._random
        if self._random.random() < 0.2:
            return [EMPTY] * len(drafters)
        return super().draft_all(drafters, [min(limit, self._random.randint(1, self.most)) for limit in limits], most)

    def learn_all(self, drafters: Sequence[Drafter], rounds: Sequence[Round]) -> Sequence[Exception | None]:
        self._n_drafted += 1
        return super().learn_all(drafters, rounds)


class RandomLimits:
    """Draws the limit of every round."""

    def __init__(self, seed: int, most: int = 9) -> None:
        self._random = random.Random(seed)
        self._most = most

    def __call__(self) -> int:
        return self._random.randint(0, self._most)
