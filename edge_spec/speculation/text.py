"""One text, and the places up to which others have followed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakSet

__all__ = ["Cursor", "Text", "common_prefix"]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two texts have in common from the start."""
    n = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        n += 1
    return n


class Cursor:
    """The place of somebody who follows a text.

    Attributes:
        place: how many tokens of the text the follower knows. It falls where the text changes before it.
    """

    __slots__ = ("__weakref__", "position")

    def __init__(self) -> None:
        self.position = 0


class Text:
    """The tokens of one text: prompt and reply.

    Followers are not called when it changes: each one takes a cursor, and asks for what is new when it needs it.

    Attributes:
        tokens: token ids. They may be appended to directly; ``shorten`` and ``cut`` take some away.
        room: the tokens by which the text may still grow; None if that is not known.
    """

    __slots__ = ("_cursors", "room", "tokens")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens = list(tokens)
        self.room: int | None = None
        self._cursors: WeakSet[Cursor] = WeakSet()

    def __len__(self) -> int:
        return len(self.tokens)

    def cursor(self) -> Cursor:
        """Return a new cursor at the beginning; it moves back with changes of the text for as long as it is kept."""
        cursor = Cursor()
        self._cursors.add(cursor)
        return cursor

    def since(self, cursor: Cursor) -> list[int]:
        """Return the tokens after a cursor, and move it to the end."""
        tokens = self.tokens[cursor.position :]
        cursor.position = len(self.tokens)
        return tokens

    def shorten(self, length: int) -> None:
        """Make the text its first ``length`` tokens."""
        del self.tokens[length:]
        self._limit(length)

    def cut(self, first: int, last: int) -> None:
        """Take the tokens from ``first`` up to ``last`` out of the text."""
        del self.tokens[first:last]
        self._limit(first)

    def _limit(self, place: int) -> None:
        for cursor in self._cursors:
            cursor.position = min(cursor.position, place)
