"""The laws of the shared noise: published numbers, the open interval, independence."""

from __future__ import annotations

import math
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from edge_spec.sampling.noise import gumbel, gumbel_array, position_key, stream_of, uniform, uniform_array

WORD = 1 << 64
GOLDEN = 0x9E3779B97F4A7C15

words = st.integers(0, WORD - 1)
tokens = st.integers(0, 2**31 - 1)

# Noise version 1. These numbers never change: a change of any of them changes every seeded text ever written.
STREAMS = {
    (0, 0, ()): 0xBE698047A7B6CFAF,
    (1, 0, (1, 2, 3)): 0x10BE5712979B8C89,
    (1, 1, (1, 2, 3)): 0x7DF7F4FD0719F113,
    (WORD - 1, WORD - 1, (0, 152063, 2**31 - 1)): 0x7A4F1C8D2FE071DD,
}
KEYS = {
    (0xBE698047A7B6CFAF, 0): 0x5E677958E3C8B075,
    (0xBE698047A7B6CFAF, 1): 0xFB9D9F4493E5963F,
    (0x10BE5712979B8C89, 1_000_000): 0x4B535C7BE635C0B8,
    (0x7A4F1C8D2FE071DD, 1): 0x036D58D59D5AB9A8,
}
NOISE = {
    (0x5E677958E3C8B075, 0): ("0x1.ba697696f960fp-1", "0x1.ec6fb3f1a35a9p+0"),
    (0x5E677958E3C8B075, 7): ("0x1.5d966aafec0d6p-2", "-0x1.272657b9b197cp-4"),
    (0xFB9D9F4493E5963F, 151_999): ("0x1.df086ef4f05c8p-4", "-0x1.86f71f94fc01fp-1"),
    (0x4B535C7BE635C0B8, 0): ("0x1.d3bd1c481e351p-1", "0x1.33a0e349e1b9fp+1"),
    (0x036D58D59D5AB9A8, 151_999): ("0x1.a9c11349e1e60p-6", "-0x1.4b76cd017d81cp+0"),
}


def mix(z: int) -> int:
    """The hash's core, once more, written from the docstring alone."""
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 % WORD
    z ^= z >> 27
    z = z * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def unmix(z: int) -> int:
    def unshift(z: int, by: int) -> int:
        x = z
        for _ in range(64 // by + 1):
            x = z ^ x >> by
        return x

    z = unshift(z, 31) * pow(0x94D049BB133111EB, -1, WORD) % WORD
    return unshift(unshift(z, 27) * pow(0xBF58476D1CE4E5B9, -1, WORD) % WORD, 30)


def key_with_bits(bits: int, token: int) -> int:
    """The key under which ``token`` hashes to ``bits``."""
    return (unmix(bits) - (token + 1) * GOLDEN) % WORD


@pytest.mark.parametrize("given", STREAMS)
def test_streams_are_the_published_ones(given: tuple[int, int, tuple[int, ...]]) -> None:
    assert stream_of(*given) == STREAMS[given]


@pytest.mark.parametrize("given", KEYS)
def test_keys_are_the_published_ones(given: tuple[int, int]) -> None:
    assert position_key(*given) == KEYS[given]


@pytest.mark.parametrize("given", NOISE)
def test_noise_is_the_published_one(given: tuple[int, int]) -> None:
    # The uniforms are integers scaled by a power of two; the logarithm belongs to the C library.
    assert uniform(*given).hex() == NOISE[given][0]
    assert gumbel(*given) == pytest.approx(float.fromhex(NOISE[given][1]), rel=1e-14)


@given(seed=words, attempt=words, prompt=st.lists(tokens, max_size=20))
def test_a_stream_is_what_its_docstring_says(seed: int, attempt: int, prompt: list[int]) -> None:
    text = b"edge-spec noise 1" + seed.to_bytes(8, "little") + attempt.to_bytes(8, "little")
    text += b"".join(token.to_bytes(4, "little") for token in prompt)
    assert stream_of(seed, attempt, prompt) == int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


@given(stream=words, index=st.integers(0, 10**7), token=tokens)
def test_noise_is_what_its_docstring_says(stream: int, index: int, token: int) -> None:
    key = mix((stream + (index + 1) * GOLDEN) % WORD)
    bits = mix((key + (token + 1) * GOLDEN) % WORD)
    assert position_key(stream, index) == key
    assert uniform(key, token) == ((bits >> 12) + 0.5) / 2**52
    assert gumbel(key, token) == -math.log(-math.log(uniform(key, token)))


@given(key=words, ids=st.lists(tokens, min_size=1, max_size=50))
def test_many_at_once_are_the_same_numbers(key: int, ids: list[int]) -> None:
    many = np.array(ids)
    assert uniform_array(key, many).tolist() == [uniform(key, token) for token in ids]
    np.testing.assert_allclose(gumbel_array(key, many), [gumbel(key, x) for x in ids], rtol=1e-14, atol=1e-14)
    assert many.tolist() == ids


@pytest.mark.parametrize("token", [0, 1, 152_063, 2**31 - 1])
def test_uniforms_lie_strictly_inside_even_at_the_last_bits(token: int) -> None:
    least, most = 2.0**-53, 1 - 2.0**-53
    for bits, expected in ((0, least), (4095, least), (WORD - 1, most), (WORD - 4096, most)):
        key = key_with_bits(bits, token)
        assert uniform(key, token) == expected == uniform_array(key, np.array([token]))[0]
        assert math.isfinite(gumbel(key, token))
        assert np.isfinite(gumbel_array(key, np.array([token]))).all()


@given(bits=words)
def test_uniforms_are_odd_multiples_of_their_step(bits: int) -> None:
    n = uniform(key_with_bits(bits, 5), 5) * 2**53
    assert n == int(n)
    assert int(n) % 2 == 1


def test_noise_is_gumbel_over_tokens_positions_and_seeds() -> None:
    over_tokens = gumbel_array(position_key(stream_of(0, 0, [1]), 0), np.arange(20_000))
    over_positions = [gumbel(position_key(7, i), 11) for i in range(20_000)]
    over_seeds = [gumbel(position_key(stream_of(seed, 0, [1]), 0), 11) for seed in range(20_000)]
    for sample in (over_tokens, over_positions, over_seeds):
        assert stats.kstest(sample, "gumbel_r").pvalue > 1e-4


def test_noise_is_independent_of_its_neighbors() -> None:
    ids = np.arange(20_000)
    here = uniform_array(position_key(3, 5), ids)
    neighbors = {
        "position": uniform_array(position_key(3, 6), ids),
        "stream": uniform_array(position_key(4, 5), ids),
        "token": uniform_array(position_key(3, 5), ids + 1),
    }
    for name, there in neighbors.items():
        cells = np.histogram2d(here, there, bins=8)[0]
        assert stats.chisquare(cells.ravel()).pvalue > 1e-4, name


def test_a_stream_depends_on_seed_attempt_and_every_token() -> None:
    given = ((0, 0, [1, 2]), (1, 0, [1, 2]), (0, 1, [1, 2]), (0, 0, [2, 1]), (0, 0, [1]), (0, 0, [1, 2, 0]))
    assert len({stream_of(*x) for x in given}) == len(given)
