"""Laws of policies, by simulated clocks: draft where it pays, as far as it pays, and never lose much by trying."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from edge_spec.speculation.policy import AdaptivePolicy, FixedPolicy, Policy
from edge_spec.speculation.round import Round


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

    def run(self, policy: Policy, n_rounds: int) -> World:
        """Go on; what is counted is counted anew."""
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
        accepted = 0
        while accepted < limit and self._random.random() < self.chance:
            accepted += 1
        draft_s = (limit * self.draft_s + self.behind * self.behind_s) * self._factor() if limit else 0.0
        verify_s = self.verify(limit + 1) * self._factor()
        self.behind = 0 if limit else self.behind + 1
        self.time += draft_s + verify_s
        self.tokens += accepted + 1
        self.limits.append(limit)
        policy.learn(
            Round(
                tokens=(0,) * (accepted + 1),
                accepted=accepted,
                drafted=(1,) * limit,
                n_rows=limit + 1,
                draft_s=draft_s,
                verify_s=verify_s,
                sample_s=0.0,
            )
        )

    def _factor(self) -> float:
        return 1 + self.noise * self._random.uniform(-1, 1)


def adaptive(seconds: Callable[[int], float] = flat) -> AdaptivePolicy:
    return AdaptivePolicy(seconds=first_estimates(seconds))


def test_a_fixed_policy_never_moves() -> None:
    policy = FixedPolicy(5)
    assert set(World(chance=0.0).run(policy, 50).limits) == {5}


def test_the_limit_is_never_more_than_the_most() -> None:
    for most in (1, 2, 5):
        policy = AdaptivePolicy(most=most, seconds=first_estimates(flat))
        assert max(World(chance=1.0, draft_s=0.01).run(policy, 300).limits) == most


def test_before_anything_is_measured_it_decodes_plainly_once() -> None:
    assert World().run(AdaptivePolicy(), 2).limits[0] == 0


# --- whether and how far


@pytest.mark.parametrize("known", [True, False])
def test_nothing_is_drafted_where_verifying_costs_what_it_saves(known: bool) -> None:
    for chance in (0.3, 0.8, 0.99):
        world = World(linear, chance=chance)
        world.run(adaptive(linear) if known else AdaptivePolicy(), 1000)
        assert world.drafting < 0.03


def test_a_drafter_that_is_never_right_is_left_alone() -> None:
    policy = adaptive()
    world = World(chance=0.0)
    world.run(policy, 300)
    assert world.run(policy, 1000).drafting < 0.02


def test_drafts_go_as_far_as_the_cost_curve_pays() -> None:
    """A model of the curve would stop at one token; the kink makes three the best."""
    policy = adaptive(kinked)
    world = World(kinked, draft_s=0.05)
    world.run(policy, 300)
    world.run(policy, 300)
    assert world.limits.count(3) > 290
    assert world.gain > 1.8


def test_better_drafts_go_further() -> None:
    lengths = []
    for chance in (0.5, 0.8, 0.97):
        policy = adaptive()
        world = World(chance=chance, draft_s=0.15)
        world.run(policy, 500)
        lengths.append(sum(world.run(policy, 500).limits))
    assert lengths == sorted(lengths)
    assert lengths[0] < 0.6 * lengths[-1]


# --- what changes is noticed


def test_it_stops_soon_when_drafts_begin_to_fail() -> None:
    policy = adaptive()
    world = World(chance=0.9)
    world.run(policy, 2000)
    world.chance = 0.0
    world.run(policy, 400)
    assert sum(limit > 0 for limit in world.limits[:100]) < 60
    assert sum(limit > 0 for limit in world.limits[100:]) < 10


@pytest.mark.parametrize("plain_rounds", [50, 300, 3000])
def test_it_starts_again_when_drafts_begin_to_succeed(plain_rounds: int) -> None:
    policy = adaptive()
    world = World(chance=0.0)
    world.run(policy, plain_rounds)
    world.chance = 0.9
    assert world.run(policy, 2000).resumed() < 600
    assert world.gain > 1.8


def test_a_drafter_that_has_much_to_read_after_a_plain_stretch_is_not_taken_for_slow() -> None:
    policy = adaptive()
    world = World(chance=0.9, behind_s=0.1)
    world.run(policy, 500)
    world.chance = 0.0
    world.run(policy, 2000)
    world.chance = 0.9
    assert world.run(policy, 2000).resumed() < 600


@pytest.mark.parametrize("times", [3, 10, 30])
def test_a_slow_first_draft_does_not_shut_drafting_off(times: int) -> None:
    """The first draft pays for page faults and warm-up."""
    policy = adaptive()
    world = World(chance=0.9, draft_s=0.1 * times, behind_s=0.02)
    world.run(policy, 1)
    assert world.limits[0] > 0
    world.draft_s = 0.1
    assert world.run(policy, 1000).resumed() < 150
    assert world.gain > 2


def test_slow_first_decodes_do_not_make_drafting_look_bad() -> None:
    policy = AdaptivePolicy(seconds={1: 1.0, 2: 4.0, 3: 4.0, 4: 4.0, 8: 4.0})
    world = World(chance=0.9)
    world.run(policy, 300)
    assert world.run(policy, 700).gain > 1.5


def test_a_slow_first_plain_decode_does_not_make_drafting_look_good() -> None:
    """What was measured once, on a busy machine, is measured again."""
    policy = AdaptivePolicy(seconds={**first_estimates(flat), 1: 2.0})
    world = World(chance=0.0, draft_s=0.2)
    world.run(policy, 1000)
    assert world.run(policy, 1000).gain > 0.95


# --- never much worse than plain decoding, and a gain where there is one


def random_curve(chooser: random.Random, *, steepness: tuple[float, ...]) -> Callable[[int], float]:
    costs = sorted([1.0, *(1 + chooser.random() * chooser.choice(steepness) for _ in range(7))])
    return lambda n_rows: costs[n_rows - 1]


def test_a_hopeless_drafter_costs_at_most_a_twentieth() -> None:
    for seed in range(60):
        chooser = random.Random(seed)
        curve = random_curve(chooser, steepness=(0.1, 1.0, 7.0))
        draft_s = chooser.choice([0.02, 0.1, 0.3])
        world = World(curve, draft_s, chooser.choice([0.0, 0.02]), chooser.choice([0.0, 0.1, 0.3]), draft_s / 8, seed)
        world.run(adaptive(curve), 3000)
        assert world.time <= 1.05 * world.tokens, world


def test_a_good_drafter_gains_most_of_what_can_be_gained() -> None:
    for seed in range(60):
        chooser = random.Random(seed)
        curve = random_curve(chooser, steepness=(0.3,))
        chance, draft_s = chooser.choice([0.7, 0.8, 0.9]), chooser.choice([0.02, 0.05, 0.1])
        world = World(curve, draft_s, chance, chooser.choice([0.0, 0.1]), draft_s / 8, seed)
        world.run(adaptive(curve), 2000)
        best = max(sum(chance**n for n in range(k + 1)) / (k * draft_s + curve(k + 1)) for k in range(8))
        assert world.gain > 0.85 * best, world
        assert world.gain > 1.3, world
