"""Laws of what the chooser knows: claims are calibrated, costs follow the device, and trials cost little."""

from __future__ import annotations

import random

import pytest
from simulated_device import Ones, kinked

from edge_spec.speculation.chooser.candidate import Candidate
from edge_spec.speculation.chooser.claims import Calibration
from edge_spec.speculation.chooser.curve import CostCurve
from edge_spec.speculation.chooser.prices import Prices
from edge_spec.speculation.round import Round


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


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("expected", [0.0, 0.05, 0.3, 1.0])
def test_one_width_tells_how_steep_the_others_are(expected: float, slope: float) -> None:
    """A line that is another one after all, of which only two rows are decoded: wider ones follow."""
    curve = CostCurve({n: 1 + expected * (n - 1) for n in (1, 2, 4, 8, 16)})
    for _ in range(150):
        curve.learn(1, 1.0)
        curve.learn(2, 1 + slope)
    assert [curve(n) for n in (1, 2, 4, 8, 16)] == pytest.approx(
        [1 + slope * (n - 1) for n in (1, 2, 4, 8, 16)], rel=0.02
    )


def test_a_table_of_costs_says_the_same_as_the_curve() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        curve = CostCurve({n: 0.1 + chance.random() for n in chance.sample(range(1, 20), chance.randint(0, 6))})
        for _ in range(chance.randint(0, 80)):
            curve.learn(chance.randint(1, 12), 0.1 + chance.random())
        most = chance.randint(1, 24)
        assert curve.first(most) == pytest.approx([curve(n) for n in range(1, most + 1)], rel=1e-9)


def test_the_least_chance_divides_what_can_pay_from_what_cannot() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        n_texts, most = chance.choice([1, 1, 2, 4]), chance.randint(1, 9)
        seconds = sorted(1 + chance.random() * chance.choice([0.1, 1.0, 9.0]) for _ in range(16))
        prices = Prices(CostCurve(dict(enumerate(seconds, 1))), most, n_texts)
        prices.learn(Round((1,) * n_texts, 0, (), n_texts, 0.0, seconds[n_texts - 1], 0.1 * chance.random()))
        prices.update()
        least = prices.least_chance
        assert prices.best_size([least * (1 - 1e-9)] * most)[0] == 0
        assert prices.best_size([least * (1 + 1e-6)] * most)[0] > 0


@pytest.mark.parametrize("n_before", [0, 1, 2, 20])
def test_one_hiccup_changes_little(n_before: int) -> None:
    """It may be the first decode of all: then the next one says more."""
    curve = CostCurve({1: 1.0, 4: 1.5})
    for seconds in [*n_before * [1.0], 1000.0, *(n_before < 2) * [1.0]]:
        curve.learn(1, seconds)
    assert curve(1) < 1.3


@pytest.mark.long
def test_widths_that_are_not_decoded_do_not_drift_away() -> None:
    """They follow the nearest of the others, and stay as near: hiccups, long and short texts in turn."""
    true, errors = {1: 1.0, 2: 1.1, 4: 1.4, 8: 2.0, 16: 3.0}, list[float]()
    for seed in range(40):
        curve, chance = CostCurve(true), random.Random(seed)
        for _ in range(1000):
            device = chance.choice((0.7, 1.0, 1.6))
            for n in chance.choices((1, 2, 8), (20, 2, 1), k=60):
                curve.learn(n, true[n] * device * chance.lognormvariate(0, 0.1) * chance.choices((1, 6), (50, 1))[0])
        for _ in range(100):
            curve.learn(1, true[1])
        seconds = [curve(n) for n in true]
        errors.append(max(abs(found / seconds[0] / s - 1) for found, s in zip(seconds, true.values(), strict=True)))
    assert sorted(errors)[35] < 0.35 and max(errors) < 1


def test_trials_cost_half_a_percent_of_the_time_and_less_where_they_keep_failing() -> None:
    candidate, now, lost = Candidate(Ones()), 0.0, 0.0
    shares = []
    for _ in range(12):
        began = now
        while not candidate.is_due(now):
            now += 1.0
        if lost:
            shares.append(lost / (now - began))
        lost = 1.0
        candidate.tried(now, lost_s=lost, caught_up_s=0.0, round_s=0.5)
    assert shares[0] == pytest.approx(0.005, rel=0.02)
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(0.005 / 4, rel=0.02)
    # One that gained is continued at once, and a failure after it counts as the first.
    candidate.tried(now, lost_s=-0.1, caught_up_s=0.0, round_s=0.5)
    assert candidate.is_due(now)
    candidate.tried(now, lost_s=1.0, caught_up_s=0.0, round_s=0.5)
    assert candidate.is_due(now + 200) and not candidate.is_due(now + 199)
