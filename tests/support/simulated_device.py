"""A simulated device and drafter: policies are tried against its clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.adaptive import AdaptiveDrafter, AdaptivePolicy
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.policy import Policy
from edge_spec.speculation.round import Round
from edge_spec.speculation.tree import EMPTY, Tree


def flat(n_rows: int) -> float:
    """Rows that come almost for free."""
    return 0.95 + 0.05 * n_rows


def linear(n_rows: int) -> float:
    """Every row costs as much as a decode of its own."""
    return float(n_rows)


def kinked(n_rows: int) -> float:
    """Kernels take rows by four: 4 cost less than 2 or 3."""
    return {1: 1.0, 2: 1.9, 3: 2.8, 4: 1.3}.get(n_rows, 2.0 + 0.2 * n_rows)


def first_estimates(seconds: Callable[[int], float]) -> dict[int, float]:
    return {n: seconds(n) for n in (1, 2, 3, 4, 8)}


@cache
def ones(n: int) -> Tree:
    """A draft of ``n`` ones."""
    return Tree.sequence([1] * n)


class Ones(Drafter):
    """A drafter with a model, which drafts ones and claims nothing."""

    name = "ones"

    def __init__(self) -> None:
        self.n_drafted = 0

    @property
    def followed(self) -> Any:
        return {"ones": None}

    def draft(self, limit: int) -> Tree:
        return self.draft_while(limit, lambda draft: True)

    def draft_while(self, limit: int, worth_more: Callable[[Tree], bool]) -> Tree:
        draft = ones(1)
        while len(draft) < limit and worth_more(draft):
            draft = ones(len(draft) + 1)
        self.n_drafted = len(draft)
        return draft


@dataclass
class World:
    """A device and a drafter. Time is counted in plain decodes; ``chance`` is that of each draft in turn.

    ``behind_s`` is what the drafter needs to read a token that was written without it.
    """

    verify: Callable[[int], float] = flat
    draft_s: float = 0.1
    chance: float = 0.8
    noise: float = 0.0
    behind_s: float = 0.0
    seed: int = 1
    time: float = 0.0
    tokens: int = 0
    behind: int = 0
    limits: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._ones = Ones()
        self._drafters: dict[Policy, Drafter] = {}

    def run(self, policy: Policy, n_rounds: int) -> World:
        """Continues; counters start at zero."""
        self.time, self.tokens, self.limits = 0.0, 0, []
        for _ in range(n_rounds):
            self._round(policy)
        return self

    @property
    def gain(self) -> float:
        """Tokens per second against plain decoding."""
        return self.tokens * self.verify(1) / self.time

    @property
    def drafting(self) -> float:
        """The share of rounds that drafted."""
        return sum(limit > 0 for limit in self.limits) / len(self.limits)

    def resumed(self) -> int:
        """After how many rounds it drafted ten times in a row."""
        places = range(len(self.limits) - 10)
        return next((n for n in places if all(self.limits[n : n + 10])), len(self.limits))

    def _round(self, policy: Policy) -> None:
        limit = policy.limit()
        ones = self._ones
        ones.n_drafted = 0
        drafter = self.drafter_of(policy)
        draft = drafter.draft(limit) if limit else EMPTY
        right = 0
        while right <= len(draft) and self._random.random() < self.chance:
            right += 1
        accepted = min(right, len(draft))
        tokens = (1,) * right if right > accepted else (*(1,) * accepted, 0)
        n_drafted, n_behind = ones.n_drafted, self.behind
        draft_s = (n_drafted * self.draft_s + n_behind * self.behind_s) * self._factor() if n_drafted else 0.0
        verify_s = self.verify(len(draft) + 1) * self._factor()
        self.behind = 0 if n_drafted else self.behind + 1
        self.time += draft_s + verify_s
        self.tokens += len(tokens)
        self.limits.append(len(draft))
        drafter.accept(tokens)
        drafter.learn(Round(tokens, accepted, (1,) * len(draft), len(draft) + 1, draft_s, verify_s, 0.0))

    def drafter_of(self, policy: Policy) -> Drafter:
        if not isinstance(policy, AdaptivePolicy):
            return self._ones
        if policy not in self._drafters:
            self._drafters[policy] = AdaptiveDrafter([self._ones], policy)
            self._drafters[policy].begin((), Sampler(SamplerSettings(), ()))
        return self._drafters[policy]

    def _factor(self) -> float:
        return 1 + self.noise * self._random.uniform(-1, 1)


def adaptive(seconds: Callable[[int], float] = flat) -> AdaptivePolicy:
    return AdaptivePolicy(seconds=first_estimates(seconds))
