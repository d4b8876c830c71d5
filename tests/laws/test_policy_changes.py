"""Laws of policies when something changes: drafters that fail or recover, and first measurements that were wrong."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_device import World, adaptive, first_estimates, flat

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.adaptive import AdaptiveDrafter, AdaptivePolicy
from edge_spec.speculation.adaptive.offer import Offer
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.round import Round
from edge_spec.speculation.tree import Tree


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


@pytest.mark.parametrize(
    "seconds", [{1: 1.0, 2: 4.0, 3: 4.0, 4: 4.0, 8: 4.0}, {1: 1.0, 2: 1.05, 3: 3.0, 4: 3.5, 8: 5.0, 10: 6.0}]
)
def test_slow_first_decodes_do_not_make_drafting_look_bad(seconds: dict[int, float]) -> None:
    """Also where only wide ones were slow, which are not decoded for that."""
    informed, misled = AdaptivePolicy(seconds=first_estimates(flat)), AdaptivePolicy(seconds=seconds)
    possible = World(chance=0.9).run(informed, 1000).gain
    world = World(chance=0.9)
    world.run(misled, 600)
    assert world.run(misled, 1000).gain > 0.95 * possible


def test_a_run_under_load_does_not_mislead_those_after_it() -> None:
    def loaded(n_rows: int) -> float:
        return flat(n_rows) * (1 if n_rows < 3 else 3)

    first, second = adaptive(), adaptive()
    World(verify=loaded, chance=0.9).run(first, 600)
    second.recall(first.as_json())
    world = World(chance=0.9)
    world.run(second, 1000)
    assert world.run(second, 1000).gain > 0.95 * World(chance=0.9).run(adaptive(), 1000).gain


@pytest.mark.parametrize("chance", [0.3, 0.4, 0.6])
def test_a_width_that_seemed_dearer_than_wider_ones_is_tried_again(chance: float) -> None:
    """Fewer rows hardly take longer than more: a slow moment is likelier."""

    def verify(n_rows: int) -> float:
        return 1 + 0.08 * (n_rows - 1)

    right = {n: verify(n) for n in (1, 2, 3, 4, 6, 8)}
    informed, misled = (
        World(verify=verify, chance=chance, draft_s=0.13).run(AdaptivePolicy(seconds=seconds), 2000).gain
        for seconds in (right, {**right, 2: 1.5, 3: 1.4})
    )
    assert misled > 0.97 * informed


def test_a_slow_first_plain_decode_does_not_make_drafting_look_good() -> None:
    """What was measured once, on a busy machine, is measured again."""
    policy = AdaptivePolicy(seconds={**first_estimates(flat), 1: 2.0})
    world = World(chance=0.0, draft_s=0.2)
    world.run(policy, 1000)
    assert world.run(policy, 1000).gain > 0.95


def test_what_a_reply_left_behind_does_not_decide_about_the_next_one() -> None:
    """A grammar's work on drafts, an interrupted round, a long pause."""
    policy, nothing_found = adaptive(), Round((1,), 0, (), 1, draft_s=5.0, verify_s=1.0, sample_s=0.0)
    policy.begin(is_guided=True)
    for _ in range(20):
        policy.chose(None)
        policy.learn(nothing_found)
    assert policy.pause.n_left == 0
    policy.begin()
    for _ in range(8):
        policy.chose(None)
        policy.learn(nothing_found)
    assert policy.pause.n_left > 100
    interrupted = Offer("model", depth=3, by_depth=False)
    policy.chose(interrupted, n_levels=3, tried_for=0.0)
    policy.begin()
    assert policy.pause.n_left <= 16
    policy.learn(Round((1,), 0, (), 1, draft_s=0.0, verify_s=1.0, sample_s=0.0))
    assert interrupted.usual_round is None


def remembered(reach: list[float]) -> dict[str, Any]:
    return {"step_s": 0.1, "reach": reach, "greedy_reach": [0.9] * 9, "sampled": [], "greedy": []}


def test_depths_that_looked_hopeless_are_drafted_again() -> None:
    """Depths that were not drafted since are tried again; where their drafts still fail, that costs little."""

    def slope(n_rows: int) -> float:
        return 0.7 + 0.3 * n_rows

    def settled(chance: float, reach: list[float] | None) -> float:
        policy, world = adaptive(slope), World(slope, draft_s=0.1, chance=chance)
        drafter = world.drafter_of(policy)
        if reach is not None:
            drafter.recall({**policy.as_json(), "rounds": 1, "drafters": {"ones": remembered(reach)}})
        world.run(policy, 1500)
        return world.run(policy, 1500).gain

    assert settled(0.95, [0.95, 0.95, *[0.1] * 7]) > 0.97 * settled(0.95, None)
    for chance in (0.3, 0.6, 0.8):
        assert settled(chance, [chance] * 9) > 0.99 * settled(chance, None)


def test_what_is_reached_is_learned_by_temperature() -> None:
    """Greedy replies are followed further than those with noise, and must not teach them."""
    offer = Offer("model", depth=9, by_depth=False)
    offer.recall(remembered([0.3] * 9))
    offer.begin(greedy=True)
    for _ in range(50):
        offer.learn_outcome(Tree.sequence([1, 1, 1]), (1, 1, 1, 1))
    assert min(offer.reach[:3]) > 0.9
    offer.begin(greedy=False)
    assert offer.reach == [0.3] * 9
    again = Offer("model", depth=9, by_depth=False)
    again.recall(offer.as_json())
    assert again.as_json() == offer.as_json()


class Told(Drafter):
    """Drafts the same in every round, with the same claims; with a model or as a table."""

    def __init__(self, name: str, values: tuple[float, ...], *, has_model: bool) -> None:
        self.name = name
        self._values, self._has_model = values, has_model
        self.n_asked = 0

    @property
    def followed(self) -> Any:
        return {self.name: None} if self._has_model else {}

    def draft(self, limit: int) -> Tree:
        self.n_asked += 1
        return Tree.sequence([1] * len(self._values), self._values).first(limit)


def test_a_model_that_drafts_in_vain_pays_for_it_itself() -> None:
    """Not the table whose draft was better, and was verified."""
    policy = AdaptivePolicy(seconds={n: 1.0 for n in range(1, 11)})
    table, model = Told("table", (0.5,), has_model=False), Told("model", (0.2, 0.04), has_model=True)
    drafter = AdaptiveDrafter([table, model], policy)
    drafter.begin((), Sampler(SamplerSettings(), ()))
    n_in_vain = 0
    for n in range(60):
        model.n_asked = 0
        draft = drafter.draft(policy.limit())
        is_tables = draft.values == (0.5,)
        n_in_vain += is_tables and model.n_asked
        tokens = (1,) * (1 + (is_tables and n % 2))
        drafter.accept(tokens)
        drafter.learn(Round(tokens, len(tokens) - 1, (1,) * len(draft), len(draft) + 1, 0.3 * model.n_asked, 1.0, 0.0))
    assert drafter.choices["table"].rounds > 40
    assert drafter.choices["table"].round_s == 1.0
    # It stops being asked.
    assert 0 < n_in_vain < 20
    known = drafter.choices["model"].round_s
    assert known is not None and known > 1.2
