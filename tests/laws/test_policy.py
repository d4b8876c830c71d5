"""Laws of policies, by simulated clocks: draft where it pays, as far as it pays, and never lose much by trying."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.adaptive import AdaptiveDrafter, AdaptivePolicy
from edge_spec.speculation.adaptive.calibration import Calibration
from edge_spec.speculation.adaptive.costs import CostCurve
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.policy import FixedPolicy, Policy
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
        draft = Tree.sequence([1])
        while len(draft) < limit and worth_more(draft):
            draft = Tree.sequence([1] * (len(draft) + 1))
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
        policy.learn(Round(tokens, accepted, (1,) * len(draft), len(draft) + 1, draft_s, verify_s, 0.0))

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
        assert world.gain > 0.985


def test_a_drafter_that_is_never_right_is_left_alone() -> None:
    policy = adaptive()
    world = World(chance=0.0)
    world.run(policy, 300)
    assert world.run(policy, 1000).gain > 0.99


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
    assert sum(limit > 0 for limit in world.limits[100:]) < 40


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
    assert world.run(policy, 3000).resumed() < 1500


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


def test_a_leaf_drafts_exactly_where_it_speeds_up_its_intermediate_model() -> None:
    """Where tokens per round, tau(d), exceed 1 + d * (r + beta): cost of a leaf token and of a further row."""
    for seed in range(60):
        chooser = random.Random(seed)
        beta, r, chance = chooser.uniform(0.02, 0.7), chooser.uniform(0.02, 0.5), chooser.uniform(0.2, 0.95)
        taus = [sum(chance**n for n in range(d + 1)) for d in range(10)]
        best = max(tau / (1 + d * (r + beta)) for d, tau in enumerate(taus) if d)

        def verify(n_rows: int, beta: float = beta) -> float:
            return 1 + beta * (n_rows - 1)

        policy = adaptive(verify)
        world = World(verify, r, chance, seed=seed)
        world.run(policy, 1000)
        world.run(policy, 2000)
        if best > 1.05:
            assert world.drafting > 0.75, (beta, r, chance, best)
        elif best < 0.95:
            assert world.drafting < 0.15, (beta, r, chance, best)
        assert world.gain > 0.96 * max(best, 1.0), (beta, r, chance, best)


def test_choices_are_counted_and_explained() -> None:
    policy = adaptive()
    world = World(chance=0.9)
    world.run(policy, 300)
    drafter = world.drafter_of(policy)
    off, ones = drafter.choices["off"], drafter.choices["ones"]
    assert (off.rounds + ones.rounds, off.tokens_per_round) == (300, 1.0)
    assert ones.rounds > 250
    assert off.round_s == pytest.approx(flat(1), rel=0.1)
    assert ones.tokens_per_round is not None
    assert ones.tokens_per_round > 3
    drafter.begin((), Sampler(SamplerSettings(), ()))
    assert drafter.choices["ones"].rounds == 0


# --- claims and costs


@pytest.mark.parametrize("greedy", [True, False])
def test_what_is_claimed_and_what_comes_true_agree(greedy: bool) -> None:
    """Within 0.05 in every band, however a drafter exaggerates."""
    for exponent in (0.3, 1.0, 3.0):
        chance, calibration = random.Random(1), Calibration(greedy=greedy)
        bands: dict[int, list[float]] = {}
        for n in range(40_000):
            claim = chance.random()
            came_true = chance.random() < claim**exponent
            if n > 4000:
                bands.setdefault(int(5 * calibration(claim)), []).append(came_true - calibration(claim))
            calibration.learn(claim, came_true)
        assert all(abs(sum(band) / len(band)) < 0.05 for band in bands.values() if len(band) > 300), exponent


def test_claims_of_siblings_are_counted_apart() -> None:
    calibration = Calibration(greedy=False)
    for _ in range(300):
        calibration.learn(0.4, True, rank=0)
        calibration.learn(0.4, False, rank=1)
    assert calibration(0.4, rank=0) > 0.95
    assert calibration(0.4, rank=1) < 0.05


def test_a_cost_curve_follows_a_device_that_slows_down() -> None:
    """Widths that are not decoded meanwhile follow as well."""
    curve = CostCurve({1: 1.0, 2: 1.2, 4: 1.5, 8: 3.0})
    for _ in range(50):
        curve.learn(1, 2.0)
    assert [curve(n) for n in (1, 2, 4, 8)] == pytest.approx([2.0, 2.4, 3.0, 6.0], rel=0.25)


def test_a_cost_curve_learns_kinks_between_its_first_widths() -> None:
    curve = CostCurve({1: 1.0, 8: 8.0})
    for _ in range(200):
        for n in (1, 3, 4, 5, 8):
            curve.learn(n, kinked(n))
    assert [curve(n) for n in (1, 3, 4, 5)] == pytest.approx([kinked(n) for n in (1, 3, 4, 5)], rel=0.1)


def test_one_hiccup_changes_little() -> None:
    curve = CostCurve({1: 1.0, 4: 1.5})
    curve.learn(1, 1000.0)
    assert curve(1) < 1.3
