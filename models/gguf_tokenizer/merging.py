"""Merging neighbors of a word into tokens, pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

__all__ = ["merged"]


def merged(parts: Sequence[bytes], order: Callable[[bytes, bytes], float | None]) -> list[bytes]:
    """Return what is left when no two neighbors are merged any more.

    Args:
        order: says of two neighbors when they are merged, lower numbers first, and None where they are not. Of equal
            ones the leftmost pair is merged first.
    """
    found: list[bytes | None] = list(parts)
    n = len(found)
    after, before = list(range(1, n + 1)), list(range(-1, n - 1))
    queue: list[tuple[float, int, int]] = []

    def consider(left: int, right: int) -> tuple[float, int, int] | None:
        a, b = found[left], found[right]
        assert a is not None and b is not None
        rank = order(a, b)
        return None if rank is None else (rank, left, len(a) + len(b))

    for left in range(n - 1):
        if (pair := consider(left, left + 1)) is not None:
            queue.append(pair)
    heapify(queue)
    while queue:
        _, left, size = heappop(queue)
        right = after[left]
        a = found[left]
        # What was merged meanwhile has become longer, or is no longer there.
        if a is None or right == n or len(a) + len(b := found[right] or b"") != size:
            continue
        found[left], found[right] = a + b, None
        after[left] = right = after[right]
        if right < n:
            before[right] = left
            if (pair := consider(left, right)) is not None:
                heappush(queue, pair)
        if (previous := before[left]) >= 0 and (pair := consider(previous, left)) is not None:
            heappush(queue, pair)
    return [part for part in found if part is not None]
