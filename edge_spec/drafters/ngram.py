"""Copying from the context: what followed the last time the text ended like this?"""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.errors import SettingsError
from edge_spec.sampling import Sampler
from edge_spec.tree import EMPTY, Tree

__all__ = ["NgramDrafter"]


class NgramDrafter:
    """Finds the longest n-gram that ends the text and occurred before, and proposes what followed it.

    The latest occurrence wins (prompt lookup decoding, Saxena 2023; CopySpec, arXiv 2502.08923). The index
    holds every position of prompt and reply, so a rollback only takes the latest positions out again.

    Args:
        longest, shortest: lengths of the n-grams tried, longest first.
    """

    name = "ngram"

    def __init__(self, *, longest: int = 4, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise SettingsError(f"n-grams of {longest} down to {shortest} tokens; at least 1 is needed")
        self._lengths = range(longest, shortest - 1, -1)
        self._text: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}
        # How often the first token copied after a match of this length was right: (right, tried).
        self._right = {n: [1, 2] for n in self._lengths}
        self._tried: tuple[int, int] | None = None

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._text.clear()
        self._ends.clear()
        self._tried = None
        self._extend(prompt)

    def draft(self, limit: int) -> Tree:
        self._tried = None
        for n in self._lengths:
            if len(self._text) < n or limit < 1:
                continue
            # The last entry is the end of the text itself.
            ends = self._ends[tuple(self._text[-n:])]
            if len(ends) < 2:
                continue
            end = ends[-2]
            copied = self._text[end : end + limit]
            self._tried = (n, copied[0])
            right, tried = self._right[n]
            chance = right / tried
            return Tree.sequence(copied, [chance ** (place + 1) for place in range(len(copied))])
        return EMPTY

    def accept(self, tokens: Sequence[int]) -> None:
        if self._tried is not None and tokens:
            n, token = self._tried
            self._right[n][0] += token == tokens[0]
            self._right[n][1] += 1
            self._tried = None
        self._extend(tokens)

    def rollback(self, length: int) -> None:
        while len(self._text) > length:
            for n in self._lengths:
                if len(self._text) >= n:
                    gram = tuple(self._text[-n:])
                    self._ends[gram].pop()
                    if not self._ends[gram]:
                        del self._ends[gram]
            self._text.pop()
        self._tried = None

    def close(self) -> None:
        self._text.clear()
        self._ends.clear()

    def _extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._text.append(token)
            for n in self._lengths:
                if len(self._text) >= n:
                    self._ends.setdefault(tuple(self._text[-n:]), []).append(len(self._text))
