"""Laws of what pays, and of what bench remembers of it."""

from __future__ import annotations

import pytest
from letters import LetterTokenizer
from table_model import TableModel, random_table

from edge_spec import TextModel
from edge_spec.controller.measurements import Gain
from edge_spec.evaluation.bench import bench
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.target import Target


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
