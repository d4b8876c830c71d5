"""Policies that decide at random."""

from __future__ import annotations

import random
from collections.abc import Iterable

from edge_spec.speculation.adaptive import AdaptivePolicy
from edge_spec.speculation.adaptive.offer import Offer
from edge_spec.speculation.round import Round


class RandomChoices(AdaptivePolicy):
    """An adaptive policy that decides at random: drafter, length, trials, pauses, and whether to draft at all."""

    def __init__(self, seed: int) -> None:
        super().__init__(seconds={1: 1.0, 8: 2.0})
        self._seed = seed
        self._n_rounds = 0
        self._random = random.Random(seed)

    def limit(self) -> int:
        return self._random.randint(0, self.most)

    @property
    def plain_gain(self) -> float:
        # Asked first for every draft: a draft that is asked for twice is the same twice.
        self._random.seed(f"{self._seed} {self._n_rounds}")
        return 0.0

    def learn(self, done: Round) -> None:
        self._n_rounds += 1
        if self._random.random() < 0.1:
            self.pause.n_left = self._random.randint(1, 4)

    def best_size(self, values: Iterable[float]) -> tuple[int, float]:
        return self._random.randint(0, len(list(values))), self._random.uniform(-1, 1)

    def is_worth_more(self, offer: Offer, value: float, n: int, depth: int) -> bool:
        return self._random.random() < 0.7

    def expected_gain(self, offer: Offer) -> float:
        return self._random.uniform(-1, 1)

    def pays_to_read(self, offer: Offer, n_unread: int, *, gained: float) -> bool:
        return self._random.random() < 0.9

    def may_try(self, offer: Offer, *, n_unread: int) -> bool:
        return self._random.random() < 0.2


class RandomLimits:
    """A policy that draws the limit of every round."""

    def __init__(self, seed: int, most: int = 9) -> None:
        self._random = random.Random(seed)
        self._most = most

    def limit(self) -> int:
        return self._random.randint(0, self._most)
