"""Copying from the context: what followed the last time the text ended like this?"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right

from edge_spec.errors import SettingsError
from edge_spec.sampling import Sampler
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.text import Cursor, Text
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["NgramDrafter", "table_bytes"]

_LONGEST, _SHORTEST = 5, 1
_MAX_BYTES = 16 << 20
_MIN_BUCKETS = 256
_BYTES = array("i").itemsize

_MAX_PASSED = 64
"""Places of a chain that are looked at. With twice as many buckets as places there is hardly ever a second one."""


class NgramDrafter(Drafter):
    """Finds the longest n-gram that ends the text and occurred before, and proposes what followed it.

    The latest occurrence wins (prompt lookup decoding, Saxena 2023; CopySpec, arXiv 2502.08923). The index
    holds every position of prompt and reply, so a rollback only takes the latest positions out again.

    Args:
        longest, shortest: lengths of the n-grams tried, longest first.
        max_bytes: of the table; where a text needs more, its older half is forgotten.
    """

    name = "ngram"

    def __init__(self, *, longest: int = _LONGEST, shortest: int = _SHORTEST, max_bytes: int = _MAX_BYTES) -> None:
        if not 1 <= shortest <= longest:
            raise SettingsError(f"n-grams of {longest} down to {shortest} tokens; at least 1 is needed")
        self._lengths = range(longest, shortest - 1, -1)
        self._most = max(_tokens_in(max_bytes, len(self._lengths)), 2 * longest)
        # The end of the text, as far as it is not forgotten: what is taken out of a table has to be known still.
        self._known = array("i")
        self._n_forgotten = 0
        self._cursor = Cursor()
        self._chains = [_Chains(self._known, n) for n in self._lengths]
        # How often the first token copied after a match of this length was right: (right, tried).
        self._right = {n: [1, 2] for n in self._lengths}
        # The length of the last match, and the place and the token that it was followed by.
        self._tried: tuple[int, int, int] | None = None

    @property
    def held_bytes(self) -> int:
        """What the table takes now."""
        return sys.getsizeof(self._known) + sum(chains.held_bytes for chains in self._chains)

    def begin(self, text: Text, sampler: Sampler) -> None:
        super().begin(text, sampler)
        self._clear()
        self._tried = None
        self._cursor = text.cursor()
        # A long prompt now, and not in the time of the first round.
        self._catch_up()

    def draft(self, limit: int) -> Tree:
        self._catch_up()
        for n, chains in zip(self._lengths, self._chains, strict=True):
            if limit < 1:
                break
            end = chains.before_last()
            if not end:
                continue
            copied = self._known[end : end + limit].tolist()
            self._tried = (n, len(self.text), copied[0])
            right, tried = self._right[n]
            chance = right / tried
            return Tree.sequence(copied, [chance ** (place + 1) for place in range(len(copied))])
        return EMPTY

    def _clear(self) -> None:
        del self._known[:]
        self._n_forgotten = 0
        for chains in self._chains:
            chains.build()

    def _catch_up(self) -> None:
        """Take in how the text has gone on, and whether the last guess was right."""
        place, tokens = self._cursor.place, self.text.tokens
        if self._tried is not None:
            n, tried_at, token = self._tried
            if tried_at < len(tokens) and tried_at <= place:
                self._right[n][0] += token == tokens[tried_at]
                self._right[n][1] += 1
            self._tried = None
        if place < self._n_forgotten:
            self._clear()
            self._n_forgotten = place
        while len(self._known) > place - self._n_forgotten:
            for chains in self._chains:
                chains.drop_last()
            self._known.pop()
        for token in self.text.since(self._cursor):
            if len(self._known) >= self._most:
                n_gone = len(self._known) // 2
                del self._known[:n_gone]
                self._n_forgotten += n_gone
                for chains in self._chains:
                    chains.build()
            self._known.append(token)
        for chains in self._chains:
            chains.catch_up()


class _Chains:
    """Where n-grams of one length end in a text: by hash the latest place, and for each place the one before it.

    As in Lempel-Ziv compressors: four bytes a place and bucket, and what is in a chain is compared with the text.

    Args:
        text: tokens. It may grow; before it shrinks, call ``drop_last``, and after other changes ``build``.
    """

    def __init__(self, text: array[int], n: int) -> None:
        self._text = text
        self._n = n
        self.build()

    @property
    def held_bytes(self) -> int:
        return sys.getsizeof(self._latest) + sys.getsizeof(self._before)

    def build(self) -> None:
        """Build the table again from all of the text."""
        # A place is where an n-gram ends; 0 stands for none.
        self._latest = array("i", [0]) * _buckets(len(self._text))
        self._before = array("i")
        for end in range(self._n, len(self._text) + 1):
            self._add(end)

    def catch_up(self) -> None:
        """Take in what the text has grown by."""
        if 2 * len(self._text) > len(self._latest):
            self.build()
        for end in range(len(self._before) + self._n, len(self._text) + 1):
            self._add(end)

    def drop_last(self) -> None:
        """The text is going to lose its last token."""
        if 0 <= len(self._text) - self._n < len(self._before):
            self._latest[self._bucket(len(self._text))] = self._before.pop()

    def before_last(self) -> int:
        """Where the n-gram that ends the text ended the last time before; 0 if it never did. Call ``catch_up`` first.

        Others in its chain are passed by, but not more than a few: a text can be such that there are thousands.
        """
        text, n = self._text, self._n
        if len(text) < n:
            return 0
        wanted = text[-n:]
        end = self._before[-1]
        for _ in range(_MAX_PASSED):
            if not end or text[end - n : end] == wanted:
                return end
            end = self._before[end - n]
        return 0

    def _add(self, end: int) -> None:
        bucket = self._bucket(end)
        self._before.append(self._latest[bucket])
        self._latest[bucket] = end

    def _bucket(self, end: int) -> int:
        return hash(tuple(self._text[end - self._n : end])) & (len(self._latest) - 1)


def table_bytes(n_tokens: int) -> int:
    """Return the most that the table of a text takes: a number per token, and per length one more and the buckets."""
    return min(_MAX_BYTES, _needed_bytes(n_tokens, _LONGEST - _SHORTEST + 1))


def _needed_bytes(n_tokens: int, n_lengths: int) -> int:
    # Arrays that grow hold an eighth more than they show.
    grown = 128 + _BYTES * (n_tokens + n_tokens // 8)
    return grown + n_lengths * (grown + 128 + _BYTES * _buckets(n_tokens))


def _tokens_in(n_bytes: int, n_lengths: int) -> int:
    """Return the most tokens whose table takes no more than that."""
    return max(0, bisect_right(range(1 << 30), n_bytes, key=lambda n: _needed_bytes(n, n_lengths)) - 1)


def _buckets(n_tokens: int) -> int:
    """Return a power of two, twice as many as tokens or more."""
    return int(max(_MIN_BUCKETS, 1 << (2 * n_tokens - 1).bit_length())) if n_tokens else _MIN_BUCKETS
