"""Laws of mirostat v2, DRY and XTC: llama.cpp's, and mirostat's memory is moved by nobody but the target."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp
import numpy as np
import pytest

from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.adjustments import Breakers, adjusted, dry_penalties, find_breakers
from edge_spec.sampling.candidates import Row, candidates_of, mirostat, next_mu
from edge_spec.sampling.noise import coin, position_key

ALL: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def applied(sampler: Any, row: Row, text: Sequence[int] = ()) -> tuple[np.ndarray[Any, Any], int]:
    """Return what a sampler of llama.cpp makes of a row after a text, and which place it selects."""
    for token in text:
        llama_cpp.llama_sampler_accept(sampler, token)
    data = np.zeros(row.size, dtype=[("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
    data["id"], data["logit"] = np.arange(row.size), row
    pointer = data.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
    array = llama_cpp.llama_token_data_array(pointer, row.size, -1, False)
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    first = (ctypes.addressof(array.data.contents) - data.ctypes.data) // data.itemsize
    return data[first : first + array.size], array.selected


# --- DRY


@pytest.fixture(scope="module")
def default_breakers(weights: Callable[[str], LlamaWeights]) -> Breakers:
    return breakers_of(weights("target"), SamplerSettings().dry_breakers)


def breakers_of(vocabulary: LlamaWeights, strings: Sequence[str]) -> Breakers:
    names = map(vocabulary.name, range(vocabulary.n_vocab))
    return find_breakers(strings, names, lambda text: vocabulary.tokenize(text, add_special=False))


@pytest.mark.long
@pytest.mark.parametrize("strings", [(), ("\n", ":", '"', "*"), ("the end", "ing ", "a")], ids=str)
def test_dry_penalizes_what_llama_cpp_does(weights: Callable[[str], LlamaWeights], strings: tuple[str, ...]) -> None:
    vocabulary = weights("target")
    vocab = llama_cpp.llama_model_get_vocab(vocabulary.handle)
    breakers = breakers_of(vocabulary, strings)
    story = vocabulary.tokenize('the end: "a" *b*\nsinging and the ending of the end, the end of', add_special=False)
    raw = [string.encode() for string in strings]
    texts = (ctypes.c_char_p * len(raw))(*raw)
    rng = np.random.default_rng(1)
    n_penalized = 0
    for _ in range(120):
        row = rng.normal(size=vocabulary.n_vocab).astype(np.float32)
        few = rng.choice(story, size=rng.integers(1, 6))
        text = [int(token) for token in rng.choice(few, size=rng.integers(0, 60))]
        if rng.random() < 0.5:
            text += story + text[:20] + story[: rng.integers(1, len(story))]
        s = SamplerSettings(
            dry_multiplier=float(rng.choice([0.5, 2.0])),
            dry_base=float(rng.choice([1.0, 1.75, 3.0])),
            dry_allowed_length=int(rng.integers(1, 5)),
            dry_penalty_window=int(rng.choice([3, 20, 64, 500])),
        )
        theirs = llama_cpp.llama_sampler_init_dry(
            vocab, s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_penalty_window, texts, len(raw)
        )
        wanted, _ = applied(theirs, row, text)
        llama_cpp.llama_sampler_free(theirs)
        ours = adjusted(row, text, s, breakers)
        np.testing.assert_allclose(ours, wanted["logit"], rtol=2e-6)
        n_penalized += int((ours != row).sum())
    assert n_penalized > 50


def test_dry_holds_off_what_repeats_and_nothing_before_a_breaker(default_breakers: Breakers) -> None:
    s = SamplerSettings(dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=2, dry_penalty_window=-1)
    assert dry_penalties([1, 2, 3, 4, 1, 2, 3], s, {}) == {4: 2.0}
    assert dry_penalties([1, 2, 3, 4, 1, 2, 3], s, {1: ((),)}) == {4: 1.0}
    assert dry_penalties([1, 2, 3, 4, 1, 2, 3], s, {3: ((),)}) == {}
    assert dry_penalties([1, 2, 3, 4, 1, 2, 3], s, {4: ((),), 9: ((1,),)}) == {}
    assert all(tails for tails in default_breakers.values())


def as_defined(text: Sequence[int], s: SamplerSettings, breakers: frozenset[int]) -> dict[int, float]:
    """DRY's penalties by their definition: every place of the window is compared with its end, token by token."""
    recent = list(text)
    if s.dry_penalty_window >= 0:
        recent = recent[max(0, len(recent) - s.dry_penalty_window) :]
    since = next((n for n, token in enumerate(reversed(recent)) if token in breakers), len(recent))
    found: dict[int, float] = {}
    for place, token in enumerate(recent):
        n = 0
        while n < min(place, since) and recent[place - 1 - n] == recent[-1 - n]:
            n += 1
        if place and n >= s.dry_allowed_length and token not in breakers:
            penalty = s.dry_multiplier * s.dry_base ** (n - s.dry_allowed_length)
            found[token] = max(found.get(token, 0.0), penalty)
    return found


def test_dry_is_its_definition_over_random_texts() -> None:
    rng = np.random.default_rng(3)
    n_penalized = 0
    for _ in range(1500):
        n_tokens = int(rng.integers(1, 8))
        text = rng.integers(0, n_tokens, size=rng.integers(0, 120)).tolist()
        text += text[: rng.integers(0, 60)] * int(rng.integers(0, 3))
        breakers = frozenset(rng.choice(20, size=rng.integers(0, 4)).tolist())
        s = SamplerSettings(
            dry_multiplier=0.8,
            dry_base=float(rng.choice([1.0, 1.1])),  # the powers of larger bases have a limit
            dry_allowed_length=int(rng.integers(1, 6)),
            dry_penalty_window=int(rng.choice([-1, 0, 1, 7, 64, 512])),
        )
        ours = dry_penalties(text, s, dict.fromkeys(breakers, ((),)))
        assert ours == as_defined(text, s, breakers)
        n_penalized += bool(ours)
    assert n_penalized > 500


# --- XTC


def test_xtc_leaves_what_llama_cpp_leaves() -> None:
    rng = np.random.default_rng(2)
    for _ in range(300):
        n = int(rng.integers(1, 200))
        row = (rng.normal(size=n) * rng.choice([0.5, 2.0, 5.0])).astype(np.float32)
        threshold = float(rng.choice([0.02, 0.1, 0.3, 0.5]))
        p = np.exp(row - row.max())
        if np.abs(p / p.sum() - threshold).min() < 1e-5:
            continue  # llama.cpp sums in float32
        theirs = llama_cpp.llama_sampler_init_xtc(1.0, threshold, 1, 7)
        wanted, _ = applied(theirs, row)
        llama_cpp.llama_sampler_free(theirs)
        ids, x = candidates_of(row, SamplerSettings(**ALL, xtc_probability=1.0, xtc_threshold=threshold))
        assert sorted(ids.tolist()) == sorted(wanted["id"].tolist())
        assert x.tolist() == row[ids].tolist()


def test_xtc_tosses_its_coin_as_often_as_asked_and_independently_of_the_noise() -> None:
    row = np.array([4.0, 3.5, 0.0, -1.0], dtype=np.float32)
    s = SamplerSettings(**ALL, temperature=0.05, xtc_probability=0.3, xtc_threshold=0.2, seed=3)
    sampler = Sampler(s, [1])
    picks = [sampler.pick(row, [1] * (1 + index)) for index in range(4000)]
    assert set(picks) == {0, 1}
    tossed = [coin(position_key(sampler.stream, index)) <= 0.3 for index in range(4000)]
    assert picks == [int(toss) for toss in tossed]
    assert abs(sum(tossed) / 4000 - 0.3) < 0.03


# --- mirostat


def test_mirostat_leaves_what_llama_cpp_leaves_and_moves_mu_alike() -> None:
    rng = np.random.default_rng(3)
    n_steps = 0
    for _ in range(30):
        tau, eta, temperature = (float(rng.choice(some)) for some in ([1.5, 3.0, 5.0], [0.1, 0.5], [0.7, 1.3]))
        theirs = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        llama_cpp.llama_sampler_chain_add(theirs, llama_cpp.llama_sampler_init_temp(temperature))
        llama_cpp.llama_sampler_chain_add(theirs, llama_cpp.llama_sampler_init_mirostat_v2(5, tau, eta))
        mu = 2 * tau
        for _ in range(15):
            row = (rng.normal(size=400) * 2.5).astype(np.float32)
            narrow, wide = (mirostat(row, temperature, mu + slack)[0] for slack in (-1e-4, 1e-4))
            if narrow.size != wide.size:
                break  # llama.cpp sums in float32
            wanted, place = applied(theirs, row)
            ids, x = mirostat(row, temperature, mu)
            assert sorted(ids.tolist()) == sorted(wanted["id"].tolist())
            p = np.exp((x - x.max()) / temperature)
            shown = dict(zip(wanted["id"].tolist(), wanted["p"].tolist(), strict=True))
            np.testing.assert_allclose([shown[token] for token in ids.tolist()], p / p.sum(), rtol=1e-3)
            ours = int((ids == wanted["id"][place]).argmax())
            s = SamplerSettings(temperature=temperature, mirostat=2, mirostat_tau=tau, mirostat_eta=eta)
            mu = next_mu(mu, x, ours, s)
            n_steps += 1
        llama_cpp.llama_sampler_free(theirs)
    assert n_steps > 200


def test_mirostat_brings_the_surprise_to_what_it_aims_at() -> None:
    rng = np.random.default_rng(4)
    for tau in (1.0, 2.5):
        sampler = Sampler(SamplerSettings(temperature=1.0, mirostat=2, mirostat_tau=tau, mirostat_eta=0.2, seed=1), [1])
        text, surprises = [1], []
        for _ in range(600):
            row = (rng.normal(size=300) * 1.5).astype(np.float32)
            mu = sampler.state()["mu"]
            ids, x = mirostat(row, 1.0, mu)
            token = sampler.pick(row, text)
            p = np.exp(x - x.max())
            surprises.append(-np.log2(p[ids.tolist().index(token)] / p.sum()))
            text.append(token)
            sampler.commit(text)
            assert sampler.state()["mu"] == pytest.approx(mu - 0.2 * (surprises[-1] - tau))
        assert np.mean(surprises[100:]) == pytest.approx(tau, abs=0.15)


def test_what_a_smaller_model_picks_does_not_move_the_mu_of_the_larger_one() -> None:
    s = SamplerSettings(temperature=1.0, mirostat=2, mirostat_tau=1.0, mirostat_eta=0.9, seed=2)
    rng = np.random.default_rng(5)
    target = Sampler(s, [1])
    view, far = target.view(), target.view().view()
    rows = rng.normal(size=(6, 50)).astype(np.float32) * 2
    other = rng.normal(size=(6, 50)).astype(np.float32) * 2
    text = [1]
    for row, wild in zip(rows, other, strict=True):
        guess = view.guess(wild, text, 4)
        assert guess[0][0] == view.pick(wild, text) == far.pick(wild, text)
        text.append(target.pick(row, text))
    alone = Sampler(s, [1])
    again = [1]
    for row in rows:
        again.append(alone.pick(row, again))
    assert text == again
    for sampler in (target, alone):
        sampler.commit(text)
    assert target.state() == alone.state()
    # Where the target has picked, smaller models know its mu; beyond they keep their own.
    assert view.pick(other[0], text) == target.pick(other[0], text)


def test_the_state_of_a_sampler_survives_as_json() -> None:
    sampler = Sampler(SamplerSettings(mirostat=2, temperature=1.0), [1])
    row = np.random.default_rng(6).normal(size=50).astype(np.float32)
    text = [1, sampler.pick(row, [1])]
    sampler.commit(text)
    resumed = Sampler(sampler.settings, [1])
    resumed.resume(text[1:], json.loads(json.dumps(sampler.state())))
    assert resumed.state() == sampler.state() != Sampler(sampler.settings, [1]).state()
    assert resumed.pick(row, text) == sampler.pick(row, text)
    assert Sampler(SamplerSettings(), [1]).state() == {}
