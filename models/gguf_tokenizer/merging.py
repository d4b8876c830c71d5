"""Merging neighbors of a word into tokens, pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

__all__ = ["Order", "by_place", "by_score", "merged"]

Order = Callable[[bytes, bytes], float | None]
"""Rank of the merge of two neighbors, lowest first; None if they are not merged."""


def by_place(merges: Mapping[bytes, int]) -> Order:
    """Merge in the order of a list, whose entries have a space between both sides."""
    place = merges.get
    return lambda left, right: place(left + b" " + right)


def by_score(ids: Mapping[bytes, int], scores: Sequence[float]) -> Order:
    """Merge into tokens, those with high scores first."""
    token_of = ids.get

    def order(left: bytes, right: bytes) -> float | None:
        token = token_of(left + right)
        return None if token is None else -scores[token]

    return order


def merged(parts: Sequence[bytes], order: Order) -> list[bytes]:
    """Return the parts that remain when no neighbors can be merged. Of equal pairs the leftmost is merged first."""
    n = len(parts)
    # Empty parts stand before the first, after the last, and where one was merged into its neighbor.
    found = [*parts, b""]
    after, before = list(range(1, n + 1)), list(range(-1, n))
    queue: list[tuple[float, int, int]] = []
    for left, (a, b) in enumerate(pairwise(parts)):
        if (rank := order(a, b)) is not None:
            queue.append((rank, left, len(a) + len(b)))
    heapify(queue)
    while queue:
        _, left, size = heappop(queue)
        right = after[left]
        a, b = found[left], found[right]
        # Skip parts that were merged meanwhile: they have become longer, or empty.
        if not a or not b or len(a) + len(b) != size:
            continue
        whole = found[left] = a + b
        found[right] = b""
        right = after[left] = after[right]
        before[right] = left
        previous = before[left]
        for first, a, b in ((left, whole, found[right]), (previous, found[previous], whole)):
            if a and b and (rank := order(a, b)) is not None:
                heappush(queue, (rank, first, len(a) + len(b)))
    return [part for part in found if part]
