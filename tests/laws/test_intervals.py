"""Laws of what bench calls sure: its intervals hold the true speed-up, and no mode has a fixed place in the order."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from letters import LetterTokenizer

from edge_spec import TextModel
from edge_spec.evaluation.bench import bench, speed_of
from edge_spec.evaluation.intervals import interval_of_median
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.statistics import Statistics
from edge_spec.speculation.target import Target
from edge_spec.testing import TableModel, random_table


def measured(chance: np.random.Generator, *, n_prompts: int, n_runs: int, prompts: float, runs: float) -> list[Any]:
    """Speed-ups by prompt and run around a median of 1.5: how much prompts differ, and runs of one, as logarithms."""
    of_prompt = prompts * chance.standard_normal((n_prompts, 1))
    return list(1.5 * np.exp(of_prompt + runs * chance.standard_normal((n_prompts, n_runs))))


@pytest.mark.long
@pytest.mark.parametrize(
    ("n_prompts", "n_runs", "prompts", "runs"), [(8, 3, 0.3, 0.05), (8, 3, 0.1, 0.1), (20, 2, 0.4, 0.02)]
)
def test_intervals_hold_the_true_speed_up(n_prompts: int, n_runs: int, prompts: float, runs: float) -> None:
    """Of 200 measurements with chances of 95 % each, fewer than 176 or all 200 would come once in 10,000 times."""
    chance = np.random.default_rng(5)
    n_right = 0
    for _ in range(200):
        low, high = interval_of_median(measured(chance, n_prompts=n_prompts, n_runs=n_runs, prompts=prompts, runs=runs))
        n_right += low <= 1.5 <= high
    assert 176 <= n_right < 200


def test_prompts_that_differ_are_not_outvoted_by_runs_that_agree() -> None:
    """Twenty runs of each of four prompts prove no more than that there are four prompts."""
    ratios = [[gain] * 20 for gain in (1.0, 1.2, 2.0, 3.0)]
    low, high = interval_of_median(ratios)
    assert low <= 1.1 and high >= 2.5
    same = [[1.5 + 0.01 * (run % 3) for run in range(20)] for _ in range(4)]
    low, high = interval_of_median(same)
    assert 1.5 <= low <= high <= 1.52


def test_equal_measurements_give_equal_intervals() -> None:
    ratios = measured(np.random.default_rng(1), n_prompts=5, n_runs=3, prompts=0.3, runs=0.1)
    assert interval_of_median(ratios) == interval_of_median(ratios)
    assert interval_of_median([[1.25]]) == (1.25, 1.25)


def test_a_run_is_compared_with_plain_decoding_of_its_own_prompt_and_round() -> None:
    """Replies are to all prompts, then to all of them again; the second round here is four times as slow."""

    def timed(*seconds: float) -> list[Any]:
        return [
            SimpleNamespace(statistics=Statistics(tokens=10, rounds=10, verify_s=each), token_ids=[1])
            for each in seconds
        ]

    plain, runs = timed(1, 2, 4, 8), timed(0.5, 2, 2, 8)
    found = speed_of("ngram", runs, plain=plain, n_prompts=2, categories=["copies", "invents"])
    assert found.by_category == {"copies": 2, "invents": 1}
    assert found.speed_up == 1.5
    assert found.interval == (1, 2)


def test_the_order_of_the_modes_is_drawn_anew_for_every_prompt_and_round() -> None:
    names = ("off", "one", "two")

    def order(seed: int) -> list[tuple[str, ...]]:
        wrote: list[str] = []

        class Told(TextModel):
            def generate(self, *arguments: Any, **more: Any) -> Any:
                wrote.append(self.mode)
                return super().generate(*arguments, **more)

        def open_model(mode: str) -> TextModel:
            speculator = Slot(TableModel(random_table(4, order=1, seed=1), n_ctx=40), NoDrafter())
            return Told(Target(speculator), lambda: 0, LetterTokenizer(end=3), mode=mode)

        list(bench(open_model, ["ab", "ba"], modes=names[1:], rounds=30, max_tokens=1, seed=seed))
        return [tuple(wrote[first : first + 3]) for first in range(0, len(wrote), 3)]

    found = order(1)
    assert all(sorted(each) == sorted(names) for each in found)
    for place in range(3):
        counted = Counter(each[place] for each in found)
        assert min(counted[name] for name in names) >= 10
    assert len(set(found)) == 6
    assert order(1) == found != order(2)
