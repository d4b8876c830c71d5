"""A simulated device and drafter: the chooser is tried against its clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.chooser.decider import Decider
from edge_spec.speculation.drafters.base import Drafter, WorthMore
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import Tree


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
    """A drafter with a model, which drafts ones, claims nothing, and takes the time that its world says.

    Args:
        table: it has no model.
    """

    name = "ones"

    def __init__(self, *, table: bool = False) -> None:
        self._is_table = table
        self.n_drafted = 0
        self.clock = 0.0
        self.world: World | None = None

    @property
    def followed(self) -> Any:
        return {} if self._is_table else {"ones": None}

    def read(self, most: int | None = None) -> bool:
        return True

    def n_unread(self) -> int:
        return 0

    def draft_all_while(
        self, drafters: Sequence[Drafter], limits: Sequence[int], worth_more: WorthMore
    ) -> Sequence[Tree]:
        (limit,), draft = limits, ones(1)
        while len(draft) < limit and worth_more([draft]):
            draft = ones(len(draft) + 1)
        self.n_drafted = len(draft)
        if self.world is not None:
            self.clock += self.world.seconds_of(len(draft))
        return [draft]


class Choosing(Chooser):
    """The chooser with one such drafter, by its clock."""

    def __init__(
        self,
        seconds: Mapping[int, float] | None = None,
        *,
        most: int = 9,
        table: bool = False,
        deciders: type[Decider] = Decider,
    ) -> None:
        self.ones, self.deciders = Ones(table=table), deciders
        super().__init__([self.ones], seconds=seconds, most=most, clock=lambda: self.ones.clock)
        self.begin(Text(), Sampler(SamplerSettings(), ()))


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

    def run(self, chooser: Choosing, n_rounds: int) -> World:
        """Continues; counters start at zero."""
        self.time, self.tokens, self.limits = 0.0, 0, []
        chooser.ones.world = self
        for _ in range(n_rounds):
            self._round(chooser)
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

    def seconds_of(self, n_drafted: int) -> float:
        """Return what drafting so many tokens takes now."""
        return (n_drafted * self.draft_s + self.behind * self.behind_s) * self._factor()

    def _round(self, chooser: Choosing) -> None:
        drafter, began = chooser.ones, chooser.ones.clock
        drafter.n_drafted = 0
        draft = chooser.draft(9)
        right = 0
        while right <= len(draft) and self._random.random() < self.chance:
            right += 1
        accepted = min(right, len(draft))
        tokens = (1,) * right if right > accepted else (*(1,) * accepted, 0)
        draft_s, verify_s = drafter.clock - began, self.verify(len(draft) + 1) * self._factor()
        self.behind = 0 if drafter.n_drafted else self.behind + 1
        self.time += draft_s + verify_s
        self.tokens += len(tokens)
        self.limits.append(len(draft))
        chooser.learn(Round(tokens, accepted, (1,) * len(draft), len(draft) + 1, draft_s, verify_s, 0.0))

    def _factor(self) -> float:
        return 1 + self.noise * self._random.uniform(-1, 1)


def informed_chooser(seconds: Callable[[int], float] = flat) -> Choosing:
    return Choosing(first_estimates(seconds))
