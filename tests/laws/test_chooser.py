"""Laws of the chooser, by simulated clocks: draft where it pays, as far as it pays, and never lose much by trying."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from simulated_device import Choosing, World, first_estimates, flat, informed_chooser, kinked, linear
from weekly import sizes

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.chooser.candidate import Candidate
from edge_spec.speculation.chooser.decider import Decider
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree


def test_the_limit_is_never_more_than_the_most() -> None:
    for most in (1, 2, 5):
        chooser = Choosing(first_estimates(flat), most=most)
        assert max(World(chance=1.0, draft_s=0.01).run(chooser, 300).limits) == most


def test_before_anything_is_measured_it_decodes_plainly_once() -> None:
    assert World().run(Choosing(), 2).limits[0] == 0


@pytest.mark.parametrize("known", [True, False])
def test_nothing_is_drafted_where_verifying_costs_what_it_saves(known: bool) -> None:
    for chance in (0.3, 0.8, 0.99):
        world = World(linear, chance=chance)
        world.run(informed_chooser(linear) if known else Choosing(), 1000)
        assert world.gain > 0.985


def test_a_drafter_that_is_never_right_is_left_alone() -> None:
    chooser = informed_chooser()
    world = World(chance=0.0)
    world.run(chooser, 300)
    assert world.run(chooser, 1000).gain > 0.99


def test_drafts_go_as_far_as_the_cost_curve_pays() -> None:
    """A model of the curve would stop at one token; the kink makes three the best."""
    chooser = informed_chooser(kinked)
    world = World(kinked, draft_s=0.05)
    world.run(chooser, 300)
    world.run(chooser, 300)
    assert world.limits.count(3) > 290
    assert world.gain > 1.8


def test_better_drafts_go_further() -> None:
    lengths = []
    for chance in (0.5, 0.8, 0.97):
        chooser = informed_chooser()
        world = World(chance=chance, draft_s=0.15)
        world.run(chooser, 500)
        lengths.append(sum(world.run(chooser, 500).limits))
    assert lengths == sorted(lengths)
    assert lengths[0] < 0.6 * lengths[-1]


def random_curve(chance_of: random.Random, *, steepness: tuple[float, ...]) -> Callable[[int], float]:
    costs = sorted([1.0, *(1 + chance_of.random() * chance_of.choice(steepness) for _ in range(9))])
    return lambda n_rows: costs[n_rows - 1]


@pytest.mark.long
@pytest.mark.parametrize("n_worlds", sizes(20, weekly=100))
def test_a_hopeless_drafter_costs_at_most_a_twentieth(n_worlds: int) -> None:
    for seed in range(n_worlds):
        chance_of = random.Random(seed)
        curve = random_curve(chance_of, steepness=(0.1, 1.0, 7.0))
        draft_s = chance_of.choice([0.02, 0.1, 0.3])
        world = World(
            curve, draft_s, chance_of.choice([0.0, 0.02]), chance_of.choice([0.0, 0.1, 0.3]), draft_s / 8, seed
        )
        world.run(informed_chooser(curve), 3000)
        assert world.time <= 1.05 * world.tokens, world


@pytest.mark.long
@pytest.mark.parametrize("n_worlds", sizes(15, weekly=60))
def test_a_good_drafter_gains_most_of_what_can_be_gained(n_worlds: int) -> None:
    for seed in range(n_worlds):
        chance_of = random.Random(seed)
        curve = random_curve(chance_of, steepness=(0.3,))
        chance, draft_s = chance_of.choice([0.7, 0.8, 0.9]), chance_of.choice([0.02, 0.05, 0.1])
        world = World(curve, draft_s, chance, chance_of.choice([0.0, 0.1]), draft_s / 8, seed)
        world.run(informed_chooser(curve), 2000)
        best = max(sum(chance**n for n in range(k + 1)) / (k * draft_s + curve(k + 1)) for k in range(8))
        assert world.gain > 0.85 * best, world
        assert world.gain > 1.3, world


@pytest.mark.long
@pytest.mark.parametrize("n_worlds", sizes(18, weekly=60))
def test_a_leaf_drafts_exactly_where_it_speeds_up_its_intermediate_model(n_worlds: int) -> None:
    """Where tokens per round, tau(d), exceed 1 + d * (r + beta): cost of a leaf token and of a further row."""
    n_paying: Counter[str] = Counter()
    for seed in range(n_worlds):
        chance_of = random.Random(seed)
        beta, r, chance = chance_of.uniform(0.02, 0.7), chance_of.uniform(0.02, 0.5), chance_of.uniform(0.2, 0.95)
        taus = [sum(chance**n for n in range(d + 1)) for d in range(10)]
        best = max(tau / (1 + d * (r + beta)) for d, tau in enumerate(taus) if d)

        def verify(n_rows: int, beta: float = beta) -> float:
            return 1 + beta * (n_rows - 1)

        chooser = informed_chooser(verify)
        world = World(verify, r, chance, seed=seed)
        world.run(chooser, 1000)
        world.run(chooser, 2000)
        pays = "surely" if best > 1.08 else "no" if best < 0.95 else "hardly"
        least, most = {"surely": (0.75, 1.0), "no": (0.0, 0.15), "hardly": (0.0, 1.0)}[pays]
        assert least <= world.drafting <= most, (beta, r, chance, best)
        assert world.gain > 0.96 * max(best, 1.0), (beta, r, chance, best)
        n_paying[pays] += 1
    assert min(n_paying["surely"], n_paying["no"]) > n_worlds // 6


def test_choices_are_counted_and_explained() -> None:
    chooser = informed_chooser()
    world = World(chance=0.9)
    world.run(chooser, 300)
    off, ones = chooser.choices["off"], chooser.choices["ones"]
    assert (off.rounds + ones.rounds, off.tokens_per_round) == (300, 1.0)
    assert ones.rounds > 250
    assert off.round_s == pytest.approx(flat(1), rel=0.1)
    assert ones.tokens_per_round is not None
    assert ones.tokens_per_round > 3
    chooser.begin(Text(), Sampler(SamplerSettings(), ()))
    assert chooser.choices["ones"].rounds == 0


class _Told(Drafter):
    """Drafts what it is told to."""

    name = "told"
    told: Tree = EMPTY

    def draft(self, limit: int) -> Tree:
        return self.told


def test_a_printed_decision_is_of_one_round() -> None:
    """A table that is asked in vain afterwards changes nothing of what was decided before."""
    table = _Told()
    chooser = Chooser([table], seconds={1: 10e-3, 2: 16e-3, 3: 16.1e-3, 4: 16.2e-3, 10: 17e-3})
    chooser.begin(Text([1, 2]), Sampler(SamplerSettings(), ()))

    def write(draft: Tree) -> int:
        table.told = draft
        drafted = chooser.draft(9)
        n = len(drafted)
        seconds = 16e-3 if n else 10e-3
        chooser.learn(Round((*drafted.tokens, 9), n, drafted.counts_by_depth(), 1 + n, 1e-5, seconds, 1e-4))
        return n

    good, poor = Tree.sequence((5, 6, 7), (0.95, 0.9, 0.85)), Tree.sequence((5,), (0.45,))
    for _ in range(60):
        write(good)
    # Now and then a plain round is measured.
    assert 3 in (write(good), write(good))
    decided = chooser.decision
    assert decided is not None and decided.n_verified == len(decided.chances) == 3
    assert max(range(4), key=decided.gain) == 3
    assert [write(poor) for _ in range(3)] == [0, 0, 0]
    assert chooser.decision == decided


@pytest.mark.parametrize("order", [(1, 8), (8, 1)])
def test_rounds_of_many_tokens_do_not_make_plain_decoding_seem_slower(order: tuple[int, ...]) -> None:
    """Sampling takes time by the token, and a round without a draft writes one."""
    chooser = Choosing({1: 1e-3, 16: 2e-3})
    for _ in range(200):
        for n in order:
            chooser.learn(Round(tuple(range(n)), n - 1, (1,) * (n - 1), n, 0.0, 1e-3, 1e-4 + (n - 1) * 5e-5))
    assert chooser.choices["off"].round_s == pytest.approx(chooser.prices.curve(1) + 1e-4, rel=1e-6)


def test_plain_decoding_is_measured_again_after_as_many_rounds_as_there_were() -> None:
    chooser = Choosing(first_estimates(flat))
    limits = World(chance=1.0, draft_s=0.01).run(chooser, 600).limits
    plain = [n for n, limit in enumerate(limits) if not limit]
    gaps = [later - earlier for earlier, later in itertools.pairwise(plain)]
    assert plain[0] == 4
    assert gaps == sorted(gaps)
    assert gaps[0] <= 6
    assert gaps[-1] == 129


@pytest.mark.long
@pytest.mark.parametrize("weighing_s", [0.0, 1e-3, 1e-2, 0.1, 10.0])
def test_finding_out_that_nobody_pays_takes_little_of_the_time(weighing_s: float) -> None:
    """By the chooser's own clock, which moves while it weighs. However long that takes, drafts are found soon again."""

    n_weighed = 0

    class Slow(Decider):
        def _expected_gain(self, model: Candidate) -> float:
            nonlocal n_weighed
            n_weighed += 1
            chooser.ones.clock += weighing_s
            return super()._expected_gain(model)

    chooser, world = Choosing(first_estimates(linear), deciders=Slow), World(linear, chance=0.5)
    world.run(chooser, 500)
    n_weighed = 0
    world.run(chooser, 1000)
    assert n_weighed * weighing_s <= 0.003 * 1000 or n_weighed <= 1000 / 128 + 20
    world.verify, world.chance = flat, 0.95
    assert world.run(chooser, 3000).resumed() < 2000


@pytest.mark.long
@pytest.mark.parametrize("learning_s", [0.0, 0.005, 0.04, 1.0])
def test_learning_from_a_tables_drafts_takes_little_of_the_time_or_is_rare(learning_s: float) -> None:
    """By the chooser's own clock, which moves while it learns. However rare that is, it sees when drafts fail."""

    n_learned = 0

    class Slow(Decider):
        def _learn_drafts(self, done: Round, rounds: Sequence[Round]) -> None:
            nonlocal n_learned
            n_learned += bool(done.drafted)
            chooser.ones.clock += learning_s
            super()._learn_drafts(done, rounds)

    chooser = Choosing(first_estimates(flat), table=True, deciders=Slow)
    world = World(chance=0.9, draft_s=0.0)
    world.run(chooser, 200)
    n_learned = 0
    assert world.run(chooser, 1000).gain > 2
    assert n_learned == pytest.approx(world.drafting * 1000 / min(max(learning_s / 0.01, 1), 8), rel=0.2)
    world.chance, world.verify = 0.0, linear
    world.run(chooser, 500)
    assert world.run(chooser, 1000).gain > 0.98


def test_what_one_text_has_taught_is_known_of_every_other_one() -> None:
    """Costs, claims, rounds and trials: a text that comes later drafts at once, and is not taught again."""
    first, second = informed_chooser(), Choosing()
    second.join(first)
    World(chance=0.9).run(first, 500)
    known, mine = first.choices["ones"], second.choices["ones"]
    assert (mine.rounds, mine.round_s, mine.tokens_per_round) == (0, known.round_s, known.tokens_per_round)
    world = World(chance=0.9).run(second, 100)
    assert world.drafting > 0.98 and world.limits[0] > 0
    assert second.as_json() == first.as_json() and second.as_json()["rounds"] == 600
