"""Rotary embeddings of queries and keys, and the ways to scale them for longer contexts.

As llama.cpp computes them: ``rope_yarn`` in ggml/src/ggml-cpu/ops.cpp, ``ggml_rope_yarn_corr_dims`` in ggml/src/ggml.c
and what src/llama-context.cpp makes of the settings for YaRN (https://arxiv.org/abs/2309.00071).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

__all__ = ["BETA_FAST", "BETA_SLOW", "Rotary", "llama3_divisors", "no_rotary", "rotary_embedding"]

Floats = npt.NDArray[np.float64]

BETA_FAST, BETA_SLOW = 32.0, 1.0
"""Full turns within the original context: YaRN leaves pairs with more of them alone, and scales pairs with fewer
completely, unless a model has bounds of its own."""


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """How queries and keys depend on their places: how far each pair of numbers is turned, and how queries grow.

    Attributes:
        frequencies: angle per position of each pair, ``[n_rotary / 2]``.
        long_frequencies: those for contexts of more than ``n_original`` tokens, often the same.
        magnitude: turned numbers are multiplied by it.
        temperature: how fast queries grow beyond the original context, see ``query_scales``; 0 if they do not.
    """

    frequencies: Floats
    long_frequencies: Floats
    n_original: int
    magnitude: float
    temperature: float = 0.0

    def of_pairs(self, turned: npt.NDArray[np.bool_]) -> Self:
        """Return one that turns only some of the pairs."""
        return replace(self, frequencies=self.frequencies * turned, long_frequencies=self.long_frequencies * turned)

    def angles(self, n_ctx: int) -> Floats:
        """Angle per position of each pair in a context of ``n_ctx`` tokens, ``[n_rotary / 2]``."""
        return self.long_frequencies if n_ctx > self.n_original else self.frequencies

    def table(self, n_cells: int, n_ctx: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Cosines and sines by position for a context of ``n_ctx`` tokens, ``[n_cells, n_rotary / 2]``."""
        angles = np.arange(n_cells)[:, None] * self.angles(n_ctx)
        return tuple((self.magnitude * turn(angles)).astype(np.float32) for turn in (np.cos, np.sin))  # type: ignore[return-value]

    def query_scales(self, n_cells: int) -> npt.NDArray[np.float32]:
        """Return what queries are multiplied by, by position: more with each further length of the original context
        (``llm_graph_input_attn_temp`` in llama.cpp's src/llama-graph.cpp), ``[n_cells]``."""
        contexts = np.arange(n_cells) // self.n_original
        scales: Floats = 1 + self.temperature * np.log(contexts + 1.0)
        return scales.astype(np.float32)

    def moved_back(
        self, keys: npt.NDArray[np.floating[Any]], n_positions: int, n_ctx: int, *, interleaved: bool
    ) -> npt.NDArray[np.float32]:
        """Keys ``[..., head_dim]`` as they would be ``n_positions`` earlier.

        Args:
            interleaved: pairs are neighbors, else they are half of the turned numbers apart.
        """
        angles = n_positions * self.angles(n_ctx)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        n = angles.size
        first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(0, n), slice(n, 2 * n))
        turned = keys.astype(np.float32)
        x, y = turned[..., first].copy(), turned[..., second].copy()
        turned[..., first] = x * cos + y * sin
        turned[..., second] = y * cos - x * sin
        return turned

    def facts(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "frequencies": self.frequencies.tolist(),
            "long_frequencies": self.long_frequencies.tolist(),
            "n_original": self.n_original,
            "magnitude": self.magnitude,
            "temperature": self.temperature,
        }

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """From what ``facts`` returned."""
        return cls(
            frequencies=np.array(facts["frequencies"], np.float64),
            long_frequencies=np.array(facts["long_frequencies"], np.float64),
            n_original=int(facts["n_original"]),
            magnitude=float(facts["magnitude"]),
            temperature=float(facts["temperature"]),
        )


def rotary_embedding(
    n_rotary: int,
    base: float,
    *,
    n_original: int,
    factor: float = 1.0,
    yarn: bool = False,
    attention_factor: float = 1.0,
    turns: tuple[float, float] = (BETA_FAST, BETA_SLOW),
    log_multiplier: float = 0.0,
    temperature: float = 0.0,
    divisors: Floats | None = None,
    long_divisors: Floats | None = None,
) -> Rotary:
    """Return the rotary embedding of heads whose first ``n_rotary`` numbers are turned.

    Args:
        base: of the angles per position, ``base ** (-2 i / n_rotary)`` for pair i.
        factor: how much longer the context is than the original one; positions are divided by it.
        yarn: divide only where turns are slow, and let numbers grow a little.
        attention_factor: by which numbers grow as well.
        turns: between so many full turns within the original context YaRN divides partly.
        log_multiplier: numbers grow less with YaRN by that much, relative to the logarithm of the factor.
        temperature: see ``Rotary``.
        divisors, long_divisors: of each pair's angle, ``[n_rotary / 2]``, for short and for long contexts.
    """
    pairs = np.arange(n_rotary // 2)
    share = np.full(n_rotary // 2, 1 / factor)
    magnitude = attention_factor
    if yarn:
        low = max(0.0, math.floor(_pair(turns[0], n_rotary, base, n_original)))
        high = min(n_rotary - 1.0, math.ceil(_pair(turns[1], n_rotary, base, n_original)))
        kept = 1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)
        share = share * (1 - kept) + kept
        growth = 0.1 * math.log(max(1.0, factor))
        magnitude *= (1 + growth) / (1 + log_multiplier * growth)
    angles = base ** (-2 * pairs / n_rotary) * share
    short = angles if divisors is None else angles / divisors
    return Rotary(
        frequencies=short,
        long_frequencies=short if long_divisors is None else angles / long_divisors,
        n_original=n_original,
        magnitude=magnitude,
        temperature=temperature,
    )


def llama3_divisors(
    n_rotary: int, base: float, *, factor: float, n_original: int, bounds: tuple[float, float]
) -> Floats:
    """Return by what the angle of each pair is divided in the way of Llama 3, ``[n_rotary / 2]``.

    Args:
        bounds: pairs that make fewer full turns than the first within the original context are divided by ``factor``,
            those that make more than the second not at all, and those between partly.
    """
    low, high = bounds
    turns = n_original * base ** (-2 * np.arange(n_rotary // 2) / n_rotary) / (2 * math.pi)
    kept = np.clip((turns - low) / max(high - low, 1e-9), 0, 1)
    return 1 / ((1 - kept) / factor + kept)


def no_rotary(like: Rotary) -> Rotary:
    """One that turns nothing, with as many pairs."""
    still = np.zeros_like(like.frequencies)
    return Rotary(frequencies=still, long_frequencies=still, n_original=like.n_original, magnitude=1.0)


def _pair(n_turns: float, n_rotary: int, base: float, n_original: int) -> float:
    """Return the pair that makes so many full turns within the original context."""
    return n_rotary * math.log(n_original / (n_turns * 2 * math.pi)) / (2 * math.log(base))
