"""Laws of what pays: by how much drafts must be right, and what bench remembers."""

from __future__ import annotations

import pytest
from letters import LetterTokenizer
from plot_bench import speed_up_of_chains
from table_model import TableModel, random_table

from edge_spec import TextModel
from edge_spec.controller.paying import Gain, needed_chance
from edge_spec.evaluation.bench import bench
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.target import Target

FLAT = {1: 0.004, 8: 0.004}
SLOPED = {1: 0.004, 8: 0.009}


def test_free_drafts_need_what_a_gain_is_at_least() -> None:
    assert needed_chance(FLAT, 0.0) == pytest.approx(0.05)


def test_where_every_row_costs_a_decode_nothing_is_enough() -> None:
    assert needed_chance({1: 0.004, 8: 0.032}, 0.001) is None


def test_slower_drafters_must_be_right_more_often() -> None:
    needed = [needed_chance(SLOPED, step_s) for step_s in (0.0, 0.0005, 0.001, 0.002)]
    assert None not in needed and needed == sorted(needed, key=lambda each: each or 0) and len(set(needed)) == 4


@pytest.mark.parametrize("step_s", [0.0003, 0.001])
def test_the_share_is_where_chains_begin_to_pay(step_s: float) -> None:
    needed = needed_chance(SLOPED, step_s)
    assert needed is not None

    def best(chance: float) -> float:
        return max(speed_up_of_chains(SLOPED, step_s, n, chance) for n in range(1, 8))

    assert best(needed) >= 1.05 > best(needed - 0.01)


def test_a_gain_pays_if_it_is_large_and_sure() -> None:
    def pays(speed_up: float, low: float, drafted: int = 500) -> bool:
        return Gain(speed_up=speed_up, low=low, high=2.5, drafted=drafted, rounds=300, mode="tree").pays

    assert pays(1.05, 1.01) and pays(2.0, 1.5)
    assert not pays(1.04, 1.03) and not pays(1.5, 0.9) and not pays(1.5, 1.0)
    assert not pays(2.0, 1.5, drafted=0)


@pytest.mark.parametrize(("prompts", "kept"), [(["ab", "ba", "cab"], True), (["ab", "ba"], False)])
def test_bench_remembers_what_enough_prompts_have_shown(prompts: list[str], kept: bool) -> None:
    told: list[Gain] = []

    def open_model(mode: str) -> TextModel:
        target = TableModel(random_table(4, order=1, seed=1), n_ctx=200)
        drafter = NoDrafter() if mode == "off" else NgramDrafter(shortest=1)
        return TextModel(
            Target(Speculator(target, drafter)),
            lambda: 3,
            LetterTokenizer(end=3),
            mode=mode,
            keep_gain=told.append,
        )

    _, found = bench(open_model, prompts, modes=["ngram"], rounds=1, max_tokens=150, ignore_eos=True)
    assert bool(told) == kept
    for gain in told:
        assert (gain.mode, gain.speed_up, gain.low, gain.high) == ("ngram", found.speed_up, *found.interval)
        assert gain.drafted == found.drafted > 0
        assert gain.rounds == pytest.approx(450 / found.mean_length)
