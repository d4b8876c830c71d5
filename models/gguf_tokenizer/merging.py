"""Merging neighbors of a word into tokens, pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

__all__ = ["Order", "by_place", "by_score", "merged"]

Order = Callable[[bytes, bytes], float | None]
"""Says of two neighbors when they are merged, lower numbers first, and None where they are not."""


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
    """Return what is left when no two neighbors are merged any more. Of equal pairs the leftmost is merged first."""
    n = len(parts)
    # An empty one stands before the first and behind the last, and where one was merged into its neighbor.
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
        # What was merged meanwhile has become longer, or is no longer there.
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
