"""The bytes of tokens that were wanted lately."""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["TOKEN_BYTES_LIMIT", "TokenBytes"]

TOKEN_BYTES_LIMIT = 1 << 19
"""The most that the pieces of one tokeniser take: of more than a thousand tokens."""

_KEY_BYTES = 32


class TokenBytes:
    """Remembers what tokens stand for, within a limit; once it is full, it starts again, empty.

    Args:
        max_bytes: the most that it may take, keys and the table itself included.
    """

    def __init__(self, *, max_bytes: int = TOKEN_BYTES_LIMIT) -> None:
        self._most_bytes = max_bytes
        self._known: dict[int, bytes] = {}
        self._content_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What it takes now."""
        return sys.getsizeof(self._known) + self._content_bytes

    def of(self, token: int, read: Callable[[int], bytes]) -> bytes:
        """The bytes of a token, by ``read`` if they are not remembered."""
        piece = self._known.get(token)
        if piece is None:
            piece = read(token)
            n_bytes = sys.getsizeof(piece) + _KEY_BYTES
            # A table that is full grows to twice its size, and is there in both sizes while it does.
            if 4 * sys.getsizeof(self._known) + self._content_bytes + n_bytes > self._most_bytes:
                self._known = {}
                self._content_bytes = 0
            self._known[token] = piece
            self._content_bytes += n_bytes
        return piece
