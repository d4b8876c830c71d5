"""Changes of logits before candidates are chosen: bias, penalties for written tokens, DRY."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from edge_spec.errors import SettingsError
from edge_spec.sampling.candidates import Ids, Row
from edge_spec.sampling.settings import SamplerSettings
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["Breakers", "Changes", "adjusted", "adjusts", "bias_changes", "changes", "dry_penalties", "find_breakers"]


def adjusts(settings: SamplerSettings) -> bool:
    """Return whether these settings change logits."""
    return bool(settings.logit_bias) or settings.uses_penalties or settings.uses_dry


def adjusted(
    row: Row, text: Sequence[int], settings: SamplerSettings, breakers: Breakers, kept: KeptTokens | None = None
) -> Row:
    """Return a copy of a row, ``[n_vocab]``, after logit bias, penalties and DRY, in this order.

    Args:
        text: prompt and reply so far.
        breakers: see ``find_breakers``.
        kept: the tokens that columns of the row stand for; None if columns are token ids.

    Raises:
        SettingsError: ``logit_bias`` names a token beyond the row.
    """
    row = row.copy()
    # A bias may be added to infinities and the largest floats; ``peak`` handles what comes of it.
    with np.errstate(over="ignore", invalid="ignore"):
        if settings.logit_bias:
            _bias(row, settings, kept)
        if settings.uses_penalties:
            _penalize(row, text, settings, kept)
        if settings.uses_dry:
            penalties = dry_penalties(text, settings, breakers)
            if penalties:
                columns, amounts = _columns(penalties, kept)
                row[columns] -= amounts
    return row


Changes = tuple[list[int], list[float]]
"""Columns of a row, and numbers to add to their logits, in this order."""


def bias_changes(settings: SamplerSettings, kept: KeptTokens | None = None) -> Changes:
    """Return what ``logit_bias`` adds to logits; see ``changes``."""
    return _changes(settings.logit_bias, kept)


def changes(
    text: Sequence[int],
    settings: SamplerSettings,
    breakers: Breakers,
    bias: Changes,
    kept: KeptTokens | None = None,
) -> Changes:
    """Return what ``adjusted`` adds to logits. Repetition penalties do more than add, so there must be none.

    Args:
        bias: what ``bias_changes`` returns; the same for the whole text, and most often all that is added.
    """
    dry = dry_penalties(text, settings, breakers) if settings.uses_dry else {}
    if not dry:
        return bias
    columns, amounts = _changes({token: -amount for token, amount in dry.items()}, kept)
    return [*bias[0], *columns], [*bias[1], *amounts]


def _changes(amounts: Mapping[int, float], kept: KeptTokens | None) -> Changes:
    if kept is None:
        return [*amounts], [*amounts.values()]
    # One beyond the vocabulary is beyond the row as well, which C leaves to Python, which refuses it.
    columns = [int(kept.columns[token]) if token < kept.n_vocab else token + 1 for token in amounts]
    known = [(column, amount) for column, amount in zip(columns, amounts.values(), strict=True) if column != len(kept)]
    return [column for column, _ in known], [amount for _, amount in known]


def _columns(values: Mapping[int, float], kept: KeptTokens | None) -> tuple[Ids, npt.NDArray[np.float32]]:
    """Return the columns of the tokens of ``values``, and their values; tokens without a column are left out."""
    ids = np.fromiter(values, dtype=np.int64, count=len(values))
    numbers = np.fromiter(values.values(), dtype=np.float32, count=len(values))
    if kept is None:
        return ids, numbers
    columns = kept.columns[ids].astype(np.int64)
    known = columns < len(kept)
    return columns[known], numbers[known]


def _bias(row: Row, settings: SamplerSettings, kept: KeptTokens | None) -> None:
    bias = settings.logit_bias
    highest, n_vocab = max(bias), row.shape[0] if kept is None else kept.n_vocab
    if highest >= n_vocab:
        raise SettingsError(f"names token {highest}; this model has {n_vocab} tokens", argument="logit_bias")
    columns, amounts = _columns(bias, kept)
    row[columns] += amounts


def _penalize(row: Row, text: Sequence[int], settings: SamplerSettings, kept: KeptTokens | None) -> None:
    counts = Counter(text if settings.penalty_window < 0 else text[-settings.penalty_window :])
    columns, times = _columns(counts, kept)
    x = row[columns]
    penalty = np.float32(settings.repeat_penalty)
    x = np.where(x <= 0, x * penalty, x / penalty)
    x -= times * np.float32(settings.frequency_penalty)
    x -= np.float32(settings.presence_penalty)
    row[columns] = x


Breakers = Mapping[int, tuple[tuple[int, ...], ...]]
"""Tokens that can begin a sequence breaker, and the tokens that complete it; none if it is complete."""

_LONGEST_TAIL = 20

_LARGEST_LOG = 88.7228391
"""The logarithm of the largest float32."""


def dry_penalties(text: Sequence[int], settings: SamplerSettings, breakers: Breakers) -> dict[int, float]:
    """Return DRY's penalties, by token that would continue a repetition of the end of ``text``."""
    window, allowed = settings.dry_penalty_window, settings.dry_allowed_length
    first = 0 if window < 0 else max(0, len(text) - window)
    if len(text) - first <= allowed or not (allowed < 2 or _has_pair(text, first)):
        return {}
    # In reverse order: the end of the text comes first.
    recent = list(text[first:])[::-1]
    most = _until_breaker(recent, breakers)
    if most < allowed:
        return {}
    longest: dict[int, int] = {}
    for place, length in _matches(recent):
        length = min(length, most)
        if length >= allowed:
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


def _has_pair(text: Sequence[int], first: int) -> bool:
    """Return whether the last pair of tokens occurs earlier, from ``first`` on; most often it does not."""
    place, before, last = first, text[-2], text[-1]
    while True:
        try:
            place = text.index(last, place + 1, len(text) - 1)
        except ValueError:
            return False
        if text[place - 1] == before:
            return True


def _until_breaker(recent: Sequence[int], breakers: Breakers) -> int:
    """Return how many tokens follow the last sequence breaker of the text."""
    for place, token in enumerate(recent if breakers else ()):
        if token not in breakers:
            continue
        complete = [
            len(tail)
            for tail in breakers[token]
            if len(tail) <= place and all(recent[place - 1 - i] == tail[i] for i in range(len(tail)))
        ]
        if complete:
            return place - max(complete)
    return len(recent)


def _matches(recent: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield positions after the start with their token and the number of tokens from there that equal the start.

    This is the Z-algorithm, which looks at each token once, at the few places where the length is not 0.
    """
    n, first = len(recent), recent[0]
    lengths = [0] * n
    left = right = place = 0
    for _ in range(recent.count(first) - 1):
        place = recent.index(first, place + 1)
        length = min(right - place, lengths[place - left]) if place < right else 0
        while place + length < n and recent[length] == recent[place + length]:
            length += 1
        lengths[place] = length
        if place + length > right:
            left, right = place, place + length
        yield place, length


def find_breakers(
    strings: Iterable[str], texts: Iterable[str], tokenize: Callable[[str], Sequence[int]]
) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Return the tokens that contain a sequence breaker, or end with a prefix of one.

    Args:
        strings: the sequence breakers, beyond which DRY does not look back.
        texts: of all tokens of the vocabulary.
        tokenize: turns the rest of a breaker into tokens.
    """
    found: dict[int, list[tuple[int, ...]]] = {}
    tails: dict[str, tuple[int, ...]] = {}
    strings = tuple(strings)
    if not strings:
        return {}
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
