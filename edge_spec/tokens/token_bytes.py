"""A cache of the bytes that tokens stand for."""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["TOKEN_BYTES_LIMIT", "TokenBytes"]

TOKEN_BYTES_LIMIT = 1 << 19
"""The size of the cache of one tokenizer, enough for more than a thousand tokens."""

_KEY_BYTES = 32


class TokenBytes:
    """Caches the bytes of tokens up to a limit; when it is full, it is emptied.

    Args:
        max_bytes: its largest size, keys and the table itself included.
    """

    def __init__(self, *, max_bytes: int = TOKEN_BYTES_LIMIT) -> None:
        self._max_bytes = max_bytes
        self._known: dict[int, bytes] = {}
        self._content_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Its size now."""
        return sys.getsizeof(self._known) + self._content_bytes

    def of(self, token: int, read: Callable[[int], bytes]) -> bytes:
        """The bytes of a token; ``read`` asks the tokenizer where they are not cached."""
        found = self._known.get(token)
        if found is None:
            found = read(token)
            n_bytes = sys.getsizeof(found) + _KEY_BYTES
            # A full table grows to twice its size, and exists in both sizes meanwhile.
            if 4 * sys.getsizeof(self._known) + self._content_bytes + n_bytes > self._max_bytes:
                self._known = {}
                self._content_bytes = 0
            self._known[token] = found
            self._content_bytes += n_bytes
        return found
