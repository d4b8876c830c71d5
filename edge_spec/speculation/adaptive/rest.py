"""How long a reply may still go on."""

from __future__ import annotations

__all__ = ["Rest"]

_FIRST_LENGTH = 128
"""Tokens that a reply is expected to have before there was one."""

_FOLLOW = 0.2


class Rest:
    """The tokens that a reply is expected to have still: as many as others had, and no more than it may.

    A model that has not followed a text has to read it before it can draft, and only the rest of the reply pays for
    that: with a long prompt and a short reply, a drafter that speeds up every round makes the whole slower.

    Attributes:
        most: tokens that the reply may still have.
    """

    def __init__(self) -> None:
        self.most = _FIRST_LENGTH
        self._length = float(_FIRST_LENGTH)
        self._n_written = 0

    def begin(self) -> None:
        """A reply begins; learn from how long the last one was."""
        if self._n_written:
            self._length += _FOLLOW * (self._n_written - self._length)
        self._n_written = 0

    def wrote(self, n_tokens: int) -> None:
        """Count tokens of the reply."""
        self._n_written += n_tokens

    @property
    def tokens(self) -> float:
        """Expected of the reply from here on. Long ones are taken to go on as all replies do."""
        return min(self.most, self._length)
