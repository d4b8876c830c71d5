"""DRY, don't repeat yourself: a penalty for tokens that would continue a repetition, by its length.

Invented by p-e-w; the steps are those of llama.cpp (``llama_sampler_dry_apply``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from edge_spec.sampling.settings import SamplerSettings

__all__ = ["Breakers", "dry_penalties", "find_breakers"]

Breakers = Mapping[int, tuple[tuple[int, ...], ...]]
"""Tokens that can begin a sequence breaker, and the tokens that complete it; none if it is complete."""

_LONGEST_TAIL = 20
_LARGEST_LOG = 88.7228391
"""The logarithm of the largest float32."""


def dry_penalties(text: Sequence[int], settings: SamplerSettings, breakers: Breakers) -> dict[int, float]:
    """What is subtracted from the logits of tokens that would continue a repetition of the end of ``text``."""
    window = settings.dry_penalty_window
    # Reversed: the end of the text comes first.
    recent = list(text if window < 0 else text[max(0, len(text) - window) :])[::-1]
    n, allowed = len(recent), settings.dry_allowed_length
    if n <= allowed:
        return {}
    most = _until_breaker(recent, breakers)
    if most < allowed:
        return {}
    longest: dict[int, int] = {}
    for place, length in enumerate(_matches(recent)):
        length = min(length, most)
        if place and length >= allowed:
            token = recent[place - 1]
            longest[token] = max(longest.get(token, 0), length)
    largest = int(_LARGEST_LOG / math.log(settings.dry_base)) if settings.dry_base > 1.000001 else 0
    penalties = {}
    for token, length in longest.items():
        if () in breakers.get(token, ()):
            continue
        exponent = length - allowed
        if largest > 0:
            exponent = min(exponent, largest)
        penalties[token] = settings.dry_multiplier * settings.dry_base**exponent
    return penalties


def _until_breaker(recent: Sequence[int], breakers: Breakers) -> int:
    """How many tokens follow the last sequence breaker of the text."""
    for place, token in enumerate(recent):
        tails = breakers.get(token)
        if tails is None:
            continue
        complete = [
            len(tail)
            for tail in tails
            if len(tail) <= place and all(recent[place - 1 - i] == tail[i] for i in range(len(tail)))
        ]
        if complete:
            return place - max(complete)
    return len(recent)


def _matches(recent: Sequence[int]) -> list[int]:
    """For every place, how many tokens from there equal those from the start: the Z-algorithm."""
    n = len(recent)
    lengths = [0] * n
    left = right = 0
    for place in range(1, n):
        length = min(right - place, lengths[place - left]) if place < right else 0
        while place + length < n and recent[length] == recent[place + length]:
            length += 1
        lengths[place] = length
        if place + length > right:
            left, right = place, place + length
    return lengths


def find_breakers(
    strings: Iterable[str], texts: Iterable[str], tokenize: Callable[[str], Sequence[int]]
) -> dict[int, tuple[tuple[int, ...], ...]]:
    """The tokens that contain a sequence breaker, or end with the beginning of one.

    Args:
        strings: the sequence breakers, beyond which DRY does not look back.
        texts: of all tokens of the vocabulary.
        tokenize: turns the rest of a breaker into tokens.
    """
    found: dict[int, list[tuple[int, ...]]] = {}
    tails: dict[str, tuple[int, ...]] = {}
    strings = tuple(strings)
    for token, text in enumerate(texts):
        for string in strings:
            if string in text:
                found.setdefault(token, []).append(())
                continue
            for n in range(1, min(len(string), len(text) + 1)):
                if text.endswith(string[:n]):
                    rest = string[n:]
                    if rest not in tails:
                        tails[rest] = tuple(tokenize(rest)[:_LONGEST_TAIL])
                    if tails[rest] not in found.setdefault(token, []):
                        found[token].append(tails[rest])
    return {token: tuple(tails) for token, tails in found.items()}
