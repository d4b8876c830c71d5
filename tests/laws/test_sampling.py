"""The laws of sampling: what can be drawn, how often it is, and what a guess says."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from edge_spec.errors import SettingsError
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.candidates import Row, candidates_of, head
from edge_spec.sampling.noise import stream_of

ALL: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Every filter off."""

LARGEST = float(np.finfo(np.float32).max)

# ---------------------------------------------------------------------------------------------------------
# Who survives


def naive(row: Row, s: SamplerSettings, slack: float = 0.0) -> list[int]:
    """The documented filters, word by word; ``slack`` widens every threshold a little."""
    logits = {token: min(x, LARGEST) for token, x in enumerate(row.tolist()) if x > -math.inf}
    if not logits:
        return [0]
    ids = sorted(logits, key=lambda token: (-logits[token], token))
    best = logits[ids[0]]
    if s.top_n_sigma > 0:
        # As the row is float32, so is the threshold.
        floor = best - s.top_n_sigma * float(np.std(list(logits.values())))
        floor = float(np.float32(max(floor - slack * abs(floor), -LARGEST)))
        ids = [token for token in ids if logits[token] >= floor]
    if s.top_k > 0:
        ids = ids[: s.top_k]
    if s.typical_p < 1:
        log_p = log_law(ids, logits)
        entropy = -math.fsum(math.exp(x) * x for x in log_p.values())
        ordered = sorted(ids, key=lambda token: abs(-log_p[token] - entropy))
        kept, mass = set(), 0.0
        for token in ordered:
            kept.add(token)
            mass += math.exp(log_p[token])
            if mass > s.typical_p + slack:
                break
        ids = [token for token in ids if token in kept]
    if s.top_p < 1:
        log_p = log_law(ids, logits)
        mass = 0.0
        for count, token in enumerate(ids, start=1):
            mass += math.exp(log_p[token])
            if mass >= s.top_p * (1 + slack):
                ids = ids[:count]
                break
    if s.min_p > 0:
        deepest = max(0.0, slack - math.log(s.min_p))
        ids = [token for token in ids if logits[ids[0]] - logits[token] <= deepest]
    return ids


def log_law(ids: list[int], logits: dict[int, float]) -> dict[int, float]:
    best = logits[ids[0]]
    total = math.log(math.fsum(math.exp(logits[token] - best) for token in ids))
    return {token: logits[token] - best - total for token in ids}


def random_row(rng: np.random.Generator, n: int) -> Row:
    """A row of one of many kinds."""
    row: Row = (rng.normal(size=n) * rng.choice([0.01, 1.0, 2.5, 8.0])).astype(np.float32)
    kind = rng.integers(10)
    if kind == 0:
        row[:] = rng.normal()
    elif kind == 1:
        row = ((row * 2).round() / 2).astype(np.float32)  # many ties
    elif kind == 2:
        row[rng.integers(n, size=3)] += 15  # a few stand out
    elif kind == 3:
        row += np.linspace(0, 20, n, dtype=np.float32)
    elif kind == 4:
        row += np.float32(rng.choice([-1e4, 1e4, 1e8]))
    if rng.random() < 0.2:
        row[rng.random(n) < rng.choice([0.01, 0.5, 1.0])] = -np.inf
    if rng.random() < 0.15:
        row[rng.random(n) < rng.choice([0.01, 0.5, 1.0])] = np.nan
    if rng.random() < 0.03:
        row[rng.integers(n, size=2)] = np.inf
    return row


FILTERS: dict[str, list[Any]] = {
    "top_k": [1, 2, 5, 40, 64, 100, 200, 10_000],
    "top_p": [0.95, 0.9, 0.5, 0.999999, 0.01, 1e-9],
    "min_p": [0.05, 0.5, 1.0, 1e-3, 1e-9, 1e-300],
    "typical_p": [0.95, 0.5, 0.02],
    "top_n_sigma": [0.3, 1.0, 3.0],
}


def random_settings(rng: np.random.Generator, share: float = 0.5) -> SamplerSettings:
    names = [name for name in FILTERS if rng.random() < share]
    chosen = {name: FILTERS[name][rng.integers(len(FILTERS[name]))] for name in names}
    return SamplerSettings(**(ALL | chosen))


def check_survivors(row: Row, s: SamplerSettings) -> bool:
    """Asserts that candidates are the naive ones; returns whether rounding could not have decided them."""
    before = row.copy()
    ids, x = candidates_of(row, s)
    np.testing.assert_array_equal(row, before)
    got = [int(token) for token in ids]
    assert len(set(got)) == len(got) >= 1
    if row[got[0]] > -np.inf:
        assert [float(v) for v in x] == [min(float(row[token]), LARGEST) for token in got]
    if isinstance(ids, list):
        order = sorted(range(len(got)), key=lambda place: (-x[place], got[place]))
        assert order == list(range(len(got)))
    narrow, wide = naive(row, s, -1e-12), naive(row, s, 1e-12)
    if narrow == wide:
        assert sorted(got) == sorted(wide), s
    elif s.typical_p == 1:
        assert set(narrow) <= set(got) <= set(wide), s
    return narrow == wide


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 300))
def test_survivors_equal_the_naive_reference(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    check_survivors(random_row(rng, n), random_settings(rng))


@settings(max_examples=300, deadline=None)
@given(
    row=st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 4.0, 9.0, -9.0, -math.inf, math.nan]), min_size=1),
    seed=st.integers(0, 2**32),
)
def test_survivors_equal_the_naive_reference_among_ties(row: list[float], seed: int) -> None:
    check_survivors(np.array(row, dtype=np.float32), random_settings(np.random.default_rng(seed)))


def test_survivors_equal_the_naive_reference_on_thousands_of_rows() -> None:
    rng = np.random.default_rng(1)
    sizes = [int(rng.integers(1, 80)) if i % 10 else int(rng.integers(1, 5000)) for i in range(1500)]
    clear = [check_survivors(random_row(rng, n), random_settings(rng)) for n in sizes]
    assert np.mean(clear) > 0.95


@pytest.mark.parametrize("name", FILTERS)
def test_survivors_equal_the_naive_reference_with_one_filter(name: str) -> None:
    rng = np.random.default_rng(2)
    for value in FILTERS[name]:
        s = SamplerSettings(**(ALL | {name: value}))
        for _ in range(12):
            check_survivors(random_row(rng, int(rng.integers(1, 600))), s)


@pytest.mark.parametrize("chosen", [{}, {"top_p": 0.9}, {"min_p": 0.02}, {"top_k": 40, "top_p": 0.95, "min_p": 0.05}])
def test_survivors_equal_the_naive_reference_at_the_largest_vocabulary(chosen: dict[str, Any]) -> None:
    row = (np.random.default_rng(3).normal(size=152_064) * 2.5).astype(np.float32)
    assert check_survivors(row, SamplerSettings(**(ALL | chosen)))


@given(seed=st.integers(0, 2**32), n=st.integers(1, 3000), k=st.integers(1, 3000))
def test_the_head_is_the_start_of_the_sorted_row(seed: int, n: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    row = (rng.normal(size=n) * rng.choice([0.3, 3, 30])).round().astype(np.float32)
    ids, logits = head(row, k)
    assert ids.tolist() == sorted(range(n), key=lambda token: (-row[token], token))[:k]
    assert logits.tolist() == row[ids].tolist()


# ---------------------------------------------------------------------------------------------------------
# llama.cpp draws from the same law


def law(row: Row, s: SamplerSettings, text: Sequence[int] = ()) -> dict[int, float]:
    """Token ids and their probabilities."""
    ids, x = candidates_of(Sampler(s, [])._adjusted(row, text), s)
    p = np.exp((np.asarray(x) - np.max(x)) / s.temperature)
    return dict(zip((int(token) for token in ids), (p / p.sum()).tolist(), strict=True))


def llama_law(row: Row, s: SamplerSettings, text: Sequence[int]) -> dict[int, float]:
    """The same by llama.cpp's chain."""
    n = row.size
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    biases = (llama_cpp.llama_logit_bias * len(s.logit_bias))(*s.logit_bias.items())
    window = len(text) if s.penalty_window < 0 else s.penalty_window
    for part in (
        llama_cpp.llama_sampler_init_logit_bias(n, len(biases), biases),
        llama_cpp.llama_sampler_init_penalties(n, window, s.repeat_penalty, s.frequency_penalty, s.presence_penalty),
        llama_cpp.llama_sampler_init_top_n_sigma(s.top_n_sigma),
        llama_cpp.llama_sampler_init_top_k(s.top_k),
        llama_cpp.llama_sampler_init_typical(s.typical_p, 1),
        llama_cpp.llama_sampler_init_top_p(s.top_p, 1),
        llama_cpp.llama_sampler_init_min_p(s.min_p, 1),
        llama_cpp.llama_sampler_init_temp(s.temperature),
    ):
        llama_cpp.llama_sampler_chain_add(chain, part)
    for token in text:
        llama_cpp.llama_sampler_accept(chain, token)
    data = np.zeros(n, dtype=[("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
    data["id"], data["logit"] = np.arange(n), row
    pointer = data.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
    array = llama_cpp.llama_token_data_array(pointer, n, -1, False)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
    llama_cpp.llama_sampler_free(chain)
    kept = data[: array.size]
    kept = kept[kept["logit"] > -np.inf]
    p = np.exp(kept["logit"].astype(np.float64) - kept["logit"].max())
    return dict(zip(kept["id"].tolist(), (p / p.sum()).tolist(), strict=True))


def test_the_law_equals_llama_cpps() -> None:
    rng = np.random.default_rng(4)
    n_compared = 0
    for _ in range(300):
        n = int(rng.integers(2, 1500))
        row = (rng.normal(size=n) * rng.choice([0.5, 2.5, 8.0])).astype(np.float32)
        text = rng.integers(n, size=rng.integers(0, 100)).tolist()
        s = random_settings(rng, 0.4)
        changes: dict[str, Any] = {"temperature": float(rng.choice([0.3, 0.8, 1.0, 2.0]))}
        if s.top_n_sigma > 0:
            changes["typical_p"] = 1.0  # a deliberate difference, see SamplerSettings
        if rng.random() < 0.5:
            changes |= {"repeat_penalty": 1.3, "penalty_window": int(rng.choice([-1, 0, 5, 64]))}
        if rng.random() < 0.3:
            changes |= {"frequency_penalty": 0.4, "presence_penalty": -0.7}
        if rng.random() < 0.3:
            changes["logit_bias"] = {0: 3.5, int(rng.integers(1, n)): -2.0}
        s = dataclasses.replace(s, **changes)
        adjusted = Sampler(s, [])._adjusted(row, text)
        # llama.cpp sums in float32: where that may decide who survives, there is nothing to compare.
        if naive(adjusted, s, -1e-4) != naive(adjusted, s, 1e-4):
            continue
        n_compared += 1
        ours, theirs = law(row, s, text), llama_law(row, s, text)
        assert ours.keys() == theirs.keys(), s
        for token, p in ours.items():
            assert theirs[token] == pytest.approx(p, rel=1e-4, abs=1e-30), s
    assert n_compared > 150


def test_the_greedy_token_equals_llama_cpps() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        row = rng.normal(size=200).astype(np.float32)
        text = rng.integers(200, size=80).tolist()
        bias = {7: -math.inf}
        s = SamplerSettings(temperature=0, repeat_penalty=1.5, frequency_penalty=0.3, logit_bias=bias)
        assert llama_law(row, s, text) == {Sampler(s, []).pick(row, text): 1.0}


# ---------------------------------------------------------------------------------------------------------
# The draw

SMALL = np.array([1.0, 0.0, 2.0, -1.0, 1.5, -np.inf, 1.0], dtype=np.float32)
WIDE = np.random.default_rng(6).normal(size=300).astype(np.float32)
MIDDLE = np.random.default_rng(7).normal(size=60).astype(np.float32)

LAWS: dict[str, tuple[Row, dict[str, Any]]] = {
    "plain": (SMALL, ALL | {"temperature": 1.0}),
    "cold": (SMALL, ALL | {"temperature": 0.5}),
    "hot": (SMALL, ALL | {"temperature": 3.0}),
    "filtered": (SMALL, {"top_k": 4, "top_p": 0.9, "min_p": 0.1}),
    "penalised": (SMALL, ALL | {"repeat_penalty": 1.5, "presence_penalty": 0.2, "logit_bias": {1: 1, 2: -2}}),
    "noise from NumPy": (MIDDLE, ALL | {"temperature": 0.7}),
    "many candidates": (WIDE, ALL | {"temperature": 1.0}),
}


def chi_square(counts: Counter[Any], expected: dict[Any, float]) -> float:
    """The p-value of the counts; what is expected fewer than 10 times is pooled."""
    n = sum(counts.values())
    assert counts.keys() <= expected.keys()
    common = [key for key, p in expected.items() if p * n >= 10]
    observed = [float(counts[key]) for key in common]
    wanted = [expected[key] * n for key in common]
    if n - sum(wanted) > 1:
        observed.append(n - sum(observed))
        wanted.append(n - sum(wanted))
    return float(stats.chisquare(observed, np.array(wanted) * n / sum(wanted)).pvalue)


def samplers(chosen: dict[str, Any], n_seeds: int = 20_000) -> Iterator[Sampler]:
    """One for each seed."""
    sampler = Sampler(SamplerSettings(**chosen), [9])
    for seed in range(n_seeds):
        sampler.stream = stream_of(seed, 0, [9])
        yield sampler


def test_a_sampler_draws_by_the_stream_of_seed_attempt_and_prompt() -> None:
    assert Sampler(SamplerSettings(seed=5, attempt=2), [9, 8]).stream == stream_of(5, 2, [9, 8])


@pytest.mark.parametrize("name", LAWS)
def test_a_pick_is_drawn_from_the_law(name: str) -> None:
    row, chosen = LAWS[name]
    text = [2, 2, 4]
    picks = Counter(sampler.pick(row, text) for sampler in samplers(chosen))
    assert chi_square(picks, law(row, SamplerSettings(**chosen), text)) > 1e-4


def test_picks_at_different_positions_are_independent() -> None:
    row = np.array([0.5, 0.0, 1.0], dtype=np.float32)
    s = SamplerSettings(**ALL, temperature=1.0)
    sampler = Sampler(s, [1, 2])
    text = [1, 2]
    picks = []
    for _ in range(20_000):
        picks.append(sampler.pick(row, text))
        text.append(0)
    p = law(row, s)
    for lag in (1, 2, 7):
        # Pairs that share no pick.
        pairs = Counter((picks[i], picks[i + lag]) for i in range(len(picks) - lag) if i // lag % 2 == 0)
        assert chi_square(pairs, {(a, b): p[a] * p[b] for a in p for b in p}) > 1e-4


def test_a_pick_depends_on_row_text_and_settings_alone() -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        row = random_row(rng, int(rng.integers(1, 500)))
        s = dataclasses.replace(random_settings(rng), seed=int(rng.integers(100)), temperature=1.0)
        text = [0] * int(rng.integers(3, 50))
        before = row.copy()
        token = Sampler(s, [0, 0, 0]).pick(row, text)
        sampler = Sampler(s, [0, 0, 0])
        sampler.pick(WIDE, [1, 2, 3, 4])
        assert sampler.pick(row.copy(), tuple(text)) == token
        np.testing.assert_array_equal(row, before)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    greedy = Sampler(SamplerSettings(temperature=0), [])
    nan, inf = math.nan, math.inf
    for values, best in (
        ([1.0, 3.0, 3.0], 1),
        ([nan, 1.0, 2.0, 2.0], 2),
        ([-inf, -inf, -5.0], 2),
        ([0.0, inf, inf], 1),
        ([nan, 1.0, inf], 2),
        ([-inf, -inf], 0),
        ([nan, nan], 0),
        ([nan, -inf], 0),
    ):
        row = np.array(values, dtype=np.float32)
        assert greedy.pick(row, []) == best
        assert greedy.guess(row, [], 1)[0][0] == best


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
def test_temperatures_near_zero_take_the_best_token(temperature: float) -> None:
    s = SamplerSettings(**ALL, temperature=temperature)
    for row in (SMALL, MIDDLE, WIDE, WIDE * 1e30):
        assert Sampler(s, []).pick(row, []) == row.argmax()


def test_a_boundless_temperature_draws_evenly() -> None:
    picks = Counter(sampler.pick(SMALL, [9]) for sampler in samplers(ALL | {"temperature": 1e300}, 3000))
    assert chi_square(picks, dict.fromkeys([0, 1, 2, 3, 4, 6], 1 / 6)) > 1e-4


def test_a_forbidden_token_is_never_drawn() -> None:
    s = SamplerSettings(**ALL, temperature=5.0, logit_bias={2: -math.inf, 4: -math.inf})
    sampler = Sampler(s, [])
    assert {sampler.pick(SMALL, [0] * i) for i in range(500)} == {0, 1, 3, 6}


def test_the_window_of_penalties_moves_with_the_text() -> None:
    row = np.array([3.0, 2.0, 1.0], dtype=np.float32)
    for window, text, best in ((1, [0, 2], 0), (2, [0, 2], 1), (-1, [0, 2, 2], 1), (0, [0], 0), (9, [], 0)):
        s = SamplerSettings(temperature=0, presence_penalty=1.5, penalty_window=window)
        assert Sampler(s, []).pick(row, text) == best


# ---------------------------------------------------------------------------------------------------------
# The guess


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 400), limit=st.integers(1, 20))
def test_the_best_guess_is_the_pick(seed: int, n: int, limit: int) -> None:
    rng = np.random.default_rng(seed)
    row = random_row(rng, n)
    text = rng.integers(n, size=20).tolist()
    s = dataclasses.replace(
        random_settings(rng, 0.3),
        temperature=float(rng.choice([0.0, 0.0, 0.8, 1e-300, 50.0])),
        repeat_penalty=float(rng.choice([1.0, 1.4])),
        logit_bias={} if rng.random() < 0.5 else {int(rng.integers(n)): 4.0, 0: -math.inf},
        seed=seed,
    )
    sampler = Sampler(s, text[:5])
    guesses = sampler.guess(row, text, limit)
    assert guesses[0][0] == sampler.pick(row, text)
    tokens, chances = zip(*guesses, strict=True)
    assert len(set(tokens)) == len(tokens) <= limit
    assert list(chances) == sorted(chances, reverse=True)
    assert 0 < sum(chances) <= 1 + 1e-12
    if s.temperature > 0:
        assert set(tokens) <= {int(token) for token in candidates_of(sampler._adjusted(row, text), s)[0]}


def ordered_pairs(p: dict[int, float]) -> Iterator[tuple[tuple[int, int], float]]:
    for a in p:
        for b in p.keys() - {a}:
            yield (a, b), p[a] * p[b] / (1 - p[a])


@pytest.mark.parametrize("name", ["filtered", "penalised"])
def test_guesses_are_drawn_without_replacement(name: str) -> None:
    row, chosen = LAWS[name]
    text = [2, 2, 4]
    pairs: Counter[tuple[int, int]] = Counter()
    for sampler in samplers(chosen, 6000):
        (a, _), (b, _) = sampler.guess(row, text, 2)
        pairs[a, b] += 1
    assert chi_square(pairs, dict(ordered_pairs(law(row, SamplerSettings(**chosen), text)))) > 1e-4


def test_chances_are_those_of_a_target_with_gumbel_errors() -> None:
    # Without filters and noise the chances are the law itself, at temperature 1.
    row = np.array([1.0, 3.0, 2.5], dtype=np.float32)
    guesses = Sampler(SamplerSettings(temperature=0), []).guess(row, [], 3)
    p = law(row, SamplerSettings(**ALL, temperature=1.0))
    assert [token for token, _ in guesses] == [1, 2, 0]
    assert [chance for _, chance in guesses] == pytest.approx([p[1], p[2], p[0]])


def test_a_greedy_guess_leaves_out_what_is_hopeless() -> None:
    row = np.array([0.0, 9.0, 8.0, 1.0], dtype=np.float32)
    assert [token for token, _ in Sampler(SamplerSettings(temperature=0), []).guess(row, [], 4)] == [1, 2]


def test_a_bias_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(SettingsError, match="names token 7; this model has 7 tokens"):
        Sampler(SamplerSettings(logit_bias={7: 1.0}), []).pick(SMALL, [])
