"""Laws of the chooser when something changes: drafters that fail or recover, and first measurements that were wrong."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_device import Choosing, Ones, World, first_estimates, flat, informed_chooser

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.chooser.candidate import Candidate
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import Tree


def test_it_stops_soon_when_drafts_begin_to_fail() -> None:
    chooser = informed_chooser()
    world = World(chance=0.9)
    world.run(chooser, 2000)
    world.chance = 0.0
    world.run(chooser, 400)
    assert sum(limit > 0 for limit in world.limits[:100]) < 60
    assert sum(limit > 0 for limit in world.limits[100:]) < 40


@pytest.mark.long
@pytest.mark.parametrize("plain_rounds", [50, 300, 3000])
def test_it_starts_again_when_drafts_begin_to_succeed(plain_rounds: int) -> None:
    chooser = informed_chooser()
    world = World(chance=0.0)
    world.run(chooser, plain_rounds)
    world.chance = 0.9
    assert world.run(chooser, 2000).resumed() < 600
    assert world.gain > 1.8


def test_a_drafter_that_has_much_to_read_after_a_plain_stretch_is_not_taken_for_slow() -> None:
    chooser = informed_chooser()
    world = World(chance=0.9, behind_s=0.1)
    world.run(chooser, 500)
    world.chance = 0.0
    world.run(chooser, 2000)
    world.chance = 0.9
    assert world.run(chooser, 3000).resumed() < 2000


@pytest.mark.parametrize("times", [3, 10, 30])
def test_a_slow_first_draft_does_not_shut_drafting_off(times: int) -> None:
    """The first draft pays for page faults and warm-up."""
    chooser = informed_chooser()
    world = World(chance=0.9, draft_s=0.1 * times, behind_s=0.02)
    world.run(chooser, 1)
    assert world.limits[0] > 0
    world.draft_s = 0.1
    assert world.run(chooser, 1000).resumed() < 150
    assert world.gain > 2


@pytest.mark.long
@pytest.mark.parametrize(
    "seconds", [{1: 1.0, 2: 4.0, 3: 4.0, 4: 4.0, 8: 4.0}, {1: 1.0, 2: 1.05, 3: 3.0, 4: 3.5, 8: 5.0, 10: 6.0}]
)
def test_slow_first_decodes_do_not_make_drafting_look_bad(seconds: dict[int, float]) -> None:
    """Also where only wide ones were slow, which are not decoded for that."""
    informed, misled = Choosing(first_estimates(flat)), Choosing(seconds)
    possible = World(chance=0.9).run(informed, 1000).gain
    world = World(chance=0.9)
    world.run(misled, 1200)
    assert world.run(misled, 1000).gain > 0.95 * possible


@pytest.mark.long
def test_a_run_under_load_does_not_mislead_those_after_it() -> None:
    def loaded(n_rows: int) -> float:
        return flat(n_rows) * (1 if n_rows < 3 else 3)

    first, second = informed_chooser(), informed_chooser()
    World(verify=loaded, chance=0.9).run(first, 600)
    second.recall(first.as_json())
    world = World(chance=0.9)
    world.run(second, 1000)
    assert world.run(second, 1000).gain > 0.95 * World(chance=0.9).run(informed_chooser(), 1000).gain


@pytest.mark.long
@pytest.mark.parametrize("chance", [0.3, 0.4, 0.6])
def test_a_width_that_seemed_dearer_than_wider_ones_is_tried_again(chance: float) -> None:
    """Fewer rows hardly take longer than more: a slow moment is likelier."""

    def verify(n_rows: int) -> float:
        return 1 + 0.08 * (n_rows - 1)

    right = {n: verify(n) for n in (1, 2, 3, 4, 6, 8)}
    informed, misled = (
        World(verify=verify, chance=chance, draft_s=0.13).run(Choosing(seconds), 2000).gain
        for seconds in (right, {**right, 2: 1.5, 3: 1.4})
    )
    assert misled > 0.97 * informed


def test_a_slow_first_plain_decode_does_not_make_drafting_look_good() -> None:
    """What was measured once, on a busy machine, is measured again."""
    chooser = Choosing({**first_estimates(flat), 1: 2.0})
    world = World(chance=0.0, draft_s=0.2)
    world.run(chooser, 1000)
    assert world.run(chooser, 1000).gain > 0.95


def test_an_interrupted_round_teaches_nothing() -> None:
    chooser, world = informed_chooser(), World(chance=0.9)
    world.run(chooser, 50)
    before = chooser.choices["ones"]
    assert chooser.draft(9)
    chooser.begin(Text(), Sampler(SamplerSettings(), ()))
    chooser.learn(Round((1,), 0, (), 1, draft_s=0.0, verify_s=1.0, sample_s=0.0))
    after = chooser.choices["ones"]
    assert (after.rounds, after.round_s, after.tokens_per_round) == (0, before.round_s, before.tokens_per_round)


def remembered(sampled: float, greedy: float) -> dict[str, Any]:
    return {"step_s": 0.1, "read_s": None, "reach": [[sampled] * 9, [greedy] * 9], "sampled": [], "greedy": []}


@pytest.mark.long
@pytest.mark.parametrize("chance", [0.3, 0.6, 0.8, 0.95])
def test_a_drafter_that_an_earlier_run_found_hopeless_gets_another_chance(chance: float) -> None:
    def slope(n_rows: int) -> float:
        return 0.7 + 0.3 * n_rows

    def settled(recalled: float | None) -> float:
        chooser, world = informed_chooser(slope), World(slope, draft_s=0.1, chance=chance)
        if recalled is not None:
            known = {"ones": remembered(recalled, recalled)}
            chooser.recall({**chooser.as_json(), "rounds": 1, "drafters": known})
        world.run(chooser, 1500)
        return world.run(chooser, 1500).gain

    assert settled(0.1) > 0.97 * settled(None)
    assert settled(0.98) > 0.97 * settled(None)


def test_what_is_accepted_is_learned_by_temperature() -> None:
    """Greedy replies are followed further than those with noise, and must not teach them."""
    candidate = Candidate(Ones())
    candidate.recall(remembered(0.3, 0.9))
    candidate.draft_for((), [True])
    for _ in range(50):
        candidate.drafts = (Tree.sequence([1, 1, 1]),)
        candidate.learn_outcome((1, 1, 1, 1))
    assert min(candidate.reach[:3]) > 0.9
    candidate.draft_for((), [False])
    assert candidate.reach == [0.3] * 9
    again = Candidate(Ones())
    again.recall(candidate.as_json())
    assert again.as_json() == candidate.as_json()


class Told(Drafter):
    """Drafts the same in every round, with the same claims; with a model or as a table."""

    def __init__(self, name: str, values: tuple[float, ...], *, has_model: bool) -> None:
        self.name = name
        self._values, self._has_model = values, has_model
        self.n_asked = 0

    @property
    def followed(self) -> Any:
        return {self.name: None} if self._has_model else {}

    def read(self, most: int | None = None) -> bool:
        return True

    def n_unread(self) -> int:
        return 0

    def draft(self, limit: int) -> Tree:
        self.n_asked += 1
        return Tree.sequence([1] * len(self._values), self._values).first(limit)


def test_a_model_that_drafts_in_vain_pays_for_it_itself() -> None:
    """Not the table whose draft was better, and was verified."""
    table, model = Told("table", (0.5,), has_model=False), Told("model", (0.2, 0.04), has_model=True)
    chooser = Chooser([table, model], seconds={n: 1.0 for n in range(1, 11)}, clock=lambda: 0.3 * model.n_asked)
    chooser.begin(Text(), Sampler(SamplerSettings(), ()))
    n_in_vain = 0
    for n in range(60):
        before = model.n_asked
        draft = chooser.draft(9)
        is_tables = draft.values == (0.5,)
        asked = model.n_asked - before
        n_in_vain += is_tables and asked
        tokens = (1,) * (1 + (is_tables and n % 2))
        chooser.learn(Round(tokens, len(tokens) - 1, (1,) * len(draft), len(draft) + 1, 0.3 * asked, 1.0, 0.0))
    assert chooser.choices["table"].rounds > 40
    assert chooser.choices["table"].round_s == 1.0
    # It stops being asked.
    assert 0 < n_in_vain < 20
    known = chooser.choices["model"].round_s
    assert known is not None and known > 1.2
