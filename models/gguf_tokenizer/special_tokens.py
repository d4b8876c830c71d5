"""Find special tokens in a text before the text between them is tokenized."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

__all__ = ["SpecialTokens"]

_LONG = 64
"""Longer names are searched one by one: comparing them at every position would take quadratic time."""

_SPACE = " \t\n\r\f\v"


class SpecialTokens:
    """Special tokens, searched in a text by their names: the longest first, each from left to right.

    Args:
        names: token ids by name.
        takes_before, takes_behind: tokens that take the white space before or after them.
    """

    def __init__(
        self,
        names: Mapping[str, int],
        *,
        takes_before: frozenset[int] = frozenset(),
        takes_behind: frozenset[int] = frozenset(),
    ) -> None:
        self._names = dict(names)
        self._ordered = sorted(names, key=lambda name: -len(name.encode()))
        self._order = {name: place for place, name in enumerate(self._ordered)}
        self._long = [place for place, name in enumerate(self._ordered) if len(name) > _LONG]
        self._takes_before, self._takes_behind = takes_before, takes_behind
        # By the first two characters: Gemma has runs of up to 31 spaces.
        lengths: dict[str, set[int]] = {}
        for name in names:
            if len(name) <= _LONG:
                lengths.setdefault(name[:2], set()).add(len(name))
        self._lengths = {begin: sorted(found, reverse=True) for begin, found in lengths.items()}
        first = "".join(sorted({begin[0] for begin in lengths}))
        self._begin = re.compile(f"[{re.escape(first)}]" if first else "(?!)")

    def parts(self, text: str) -> Iterator[str | int]:
        """Yield special tokens, and the text between them, in order."""
        begin = 0
        for start, end, token in sorted(self._found(text)):
            if start > begin:
                yield text[begin:start]
            yield token
            begin = end
        if begin < len(text):
            yield text[begin:]

    def _found(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges of tokens, in the order of the search."""
        taken = bytearray(len(text))
        # Names at one position share a prefix, so shorter ones are tried only if longer ones do not fit.
        places: dict[str, list[int]] = {}
        # Only names that may be there are looked at: Gemma has thousands.
        queue = self._long.copy()
        for match in self._begin.finditer(text):
            self._add_longest(places, queue, text, match.start(), _LONG)
        while queue:
            name = self._ordered[heappop(queue)]
            token = self._names[name]
            known = sorted(places.pop(name, ())) if len(name) <= _LONG else _free_places(text, name, taken)
            for begin in known:
                end = begin + len(name)
                if taken[begin]:
                    continue
                # Taken ranges are at least as long, so they never lie within a name.
                if taken[end - 1]:
                    self._add_longest(places, queue, text, begin, taken.find(1, begin) - begin)
                    continue
                if token in self._takes_before:
                    while begin and text[begin - 1] in _SPACE and not taken[begin - 1]:
                        begin -= 1
                if token in self._takes_behind:
                    while end < len(text) and text[end] in _SPACE and not taken[end]:
                        end += 1
                taken[begin:end] = bytes([1]) * (end - begin)
                yield begin, end, token

    def _add_longest(self, places: dict[str, list[int]], queue: list[int], text: str, at: int, most: int) -> None:
        """Add a position to those of the longest name there with at most this many characters."""
        for begin in (text[at : at + 2], text[at]):
            for length in self._lengths.get(begin, ()):
                if length <= most and (name := text[at : at + length]) in self._names:
                    if name not in places:
                        places[name] = []
                        heappush(queue, self._order[name])
                    places[name].append(at)
                    return


def _free_places(text: str, name: str, taken: bytearray) -> Iterator[int]:
    """Yield positions of a name outside of taken ranges, which may grow meanwhile."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        blocked = at if taken[at] else end - 1
        if not taken[blocked]:
            yield at
            blocked = at
        free = taken.find(0, blocked)
        at = text.find(name, free) if free >= 0 else -1
