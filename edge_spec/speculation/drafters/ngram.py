"""Copying from the context: what followed the last time the text ended like this?"""

from __future__ import annotations

import sys

from edge_spec.errors import SettingsError
from edge_spec.sampling import Sampler
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.text import Cursor, Text
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["NgramDrafter", "table_bytes"]

_LONGEST, _SHORTEST = 5, 1


class NgramDrafter(Drafter):
    """Finds the longest n-gram that ends the text and occurred before, and proposes what followed it.

    The latest occurrence wins (prompt lookup decoding, Saxena 2023; CopySpec, arXiv 2502.08923). It is searched for in
    a string with a character for each token: searching a few thousand characters takes microseconds, and where nobody
    asks, nothing has to be kept up to date.

    Args:
        longest, shortest: lengths of the n-grams tried.
    """

    name = "ngram"

    def __init__(self, *, longest: int = _LONGEST, shortest: int = _SHORTEST) -> None:
        if not 1 <= shortest <= longest:
            raise SettingsError(f"n-grams of {longest} down to {shortest} tokens; at least 1 is needed")
        self._lengths = range(shortest, longest + 1)
        self._known = ""
        self._cursor = Cursor()
        # How often the first token copied after a match of this length was right: (right, tried).
        self._right = {n: [1, 2] for n in self._lengths}
        # The length of the last match, and the place and the token that it was followed by.
        self._tried: tuple[int, int, int] | None = None

    @property
    def held_bytes(self) -> int:
        return sys.getsizeof(self._known)

    def begin(self, text: Text, sampler: Sampler) -> None:
        super().begin(text, sampler)
        self._known, self._tried = "", None
        self._cursor = text.cursor()

    def draft(self, limit: int) -> Tree:
        self._catch_up()
        known, matched = self._known, 0
        # A longer match ends where a shorter one does, or before.
        end = len(known) - 1
        for n in self._lengths:
            start = known.rfind(known[-n:], 0, end) if n <= end else -1
            if start < 0:
                break
            matched, end = n, start + n
        if not matched or limit < 1:
            return EMPTY
        copied = self.text.tokens[end : end + limit]
        self._tried = (matched, len(known), copied[0])
        right, tried = self._right[matched]
        return Tree.sequence(copied, [(right / tried) ** (place + 1) for place in range(len(copied))])

    def _catch_up(self) -> None:
        """Take in how the text has gone on, and whether the last guess was right."""
        place, tokens = self._cursor.position, self.text.tokens
        if self._tried is not None:
            n, tried_at, token = self._tried
            if place >= tried_at < len(tokens):
                self._right[n][0] += token == tokens[tried_at]
                self._right[n][1] += 1
            self._tried = None
        self._known = self._known[:place] + "".join(map(chr, self.text.since(self._cursor)))


def table_bytes(n_tokens: int) -> int:
    """Return the most that the string of a text takes: four bytes for a token, and as many again while it grows."""
    return 2 * (sys.getsizeof(chr(sys.maxunicode)) + 4 * n_tokens)
