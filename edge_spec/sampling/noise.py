"""The noise that every model shares.

Each token of a reply is the arg max of its log probability plus Gumbel noise, and the noise is a hash of
(stream, index of the token in the reply, token id). That is one exact draw from the model's distribution. A drafter
that uses the same noise on its own distribution is likely to make the same draw as the target
(Gumbel-coupled drafting: Daliri, Musco, Suresh, arXiv 2408.07978).

The hash, version 1, all arithmetic modulo 2**64:

    G = 0x9E3779B97F4A7C15
    mix(z):  z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
    stream        = the first 8 bytes, little endian, of BLAKE2b-64 over
                    "edge-spec noise 1", seed (u64), attempt (u64), the prompt's token ids (i32 each)
    key(i)        = mix(stream + (i + 1) * G)                  i = 0 for the first token of the reply
    bits(i, x)    = mix(key(i) + (x + 1) * G)                  x = token id
    uniform(i, x) = ((bits >> 12) + 1/2) * 2**-52              an odd multiple of 2**-53, never 0 or 1
    gumbel(i, x)  = -log(-log(uniform))
    coin(i)       = uniform(i, -1)                             for decisions about a place, not a token

``mix`` and the steps of G are SplitMix64 (Steele, Lea, Flood, 2014). The stream depends on the whole untrimmed
prompt, so that equal seeds are independent on other prompts and in other turns; it never depends on positions in a
cache, which shift. ``tests/laws/test_noise.py`` has published test vectors.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from math import log

import numpy as np
import numpy.typing as npt

__all__ = ["coin", "gumbel", "gumbel_array", "position_key", "stream_of", "uniform", "uniform_array"]

VERSION = 1

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_STEP = 2.0**-52
# NumPy keeps uint64 arithmetic in uint64 only if both sides are uint64.
_U_GOLDEN, _U_1, _U_2 = np.uint64(_GOLDEN), np.uint64(_MULTIPLIER_1), np.uint64(_MULTIPLIER_2)
_U_12, _U_27, _U_30, _U_31 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31)


def stream_of(seed: int, attempt: int, prompt: Sequence[int]) -> int:
    """Return the noise stream of one reply, a 64-bit integer.

    Args:
        seed: 0 <= seed < 2**64.
        attempt: 0 for the first answer to this prompt, one more for every retry.
        prompt: token ids of the whole prompt as it was before any trimming.
    """
    digest = blake2b(f"edge-spec noise {VERSION}".encode(), digest_size=8)
    digest.update(struct.pack("<QQ", seed, attempt))
    digest.update(np.asarray(prompt, dtype="<i4").tobytes())
    return int.from_bytes(digest.digest(), "little")


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MULTIPLIER_1) & _MASK
    z = ((z ^ (z >> 27)) * _MULTIPLIER_2) & _MASK
    return z ^ (z >> 31)


def position_key(stream: int, index: int) -> int:
    """Return the key with which token ids are hashed for the ``index``-th token of the reply."""
    return _mix((stream + (index + 1) * _GOLDEN) & _MASK)


def uniform(key: int, token: int) -> float:
    """Return a uniform number strictly inside (0, 1); ``key`` comes from ``position_key``."""
    return ((_mix((key + (token + 1) * _GOLDEN) & _MASK) >> 12) + 0.5) * _STEP


def coin(key: int) -> float:
    """Return a uniform number strictly inside (0, 1) for the position; ``key`` comes from ``position_key``."""
    return uniform(key, -1)


def gumbel(key: int, token: int) -> float:
    """Return standard Gumbel noise."""
    return -log(-log(((_mix((key + (token + 1) * _GOLDEN) & _MASK) >> 12) + 0.5) * _STEP))


def uniform_array(key: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """``uniform`` of many tokens at once, ``[n]``: the same numbers."""
    z = tokens.astype(np.uint64)
    z += np.uint64(1)
    z *= _U_GOLDEN
    z += np.uint64(key)
    for shift, multiplier in ((_U_30, _U_1), (_U_27, _U_2)):
        z ^= z >> shift
        z *= multiplier
    z ^= z >> _U_31
    z >>= _U_12
    u = z.astype(np.float64)
    u += 0.5
    u *= _STEP
    return u


def gumbel_array(key: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """``gumbel`` of many tokens at once, ``[n]``: the same up to the last bit, which is that of NumPy's logarithm."""
    g = uniform_array(key, tokens)
    # In place: fresh memory for a large vocabulary costs more than the arithmetic.
    for _ in range(2):
        np.log(g, out=g)
        np.negative(g, out=g)
    return g
