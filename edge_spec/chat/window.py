"""The part of a long conversation that the model sees."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from edge_spec.errors import PromptTooLong

__all__ = ["Window"]

_SINKS = 4
"""Number of first tokens that always stay: attention relies on them (StreamingLLM, arXiv 2309.17453)."""


class Window:
    """The head of a conversation and its recent part; the model does not see what lies between them.

    When the context is full, the oldest messages go until half of what the head leaves is free; if the last
    message alone is longer, its beginning goes. That depends only on how many tokens there are, so drafts never move
    the window.

    Attributes:
        head: tokens that stay at the beginning: the system message.
        start: the first token after them that the model sees; ``head`` as long as it sees all.
        boundaries: where turns begin, ascending.
    """

    def __init__(self, head: int = _SINKS, start: int = 0, boundaries: Sequence[int] = ()) -> None:
        self.head = max(head, _SINKS)
        self.start = max(start, self.head)
        self.boundaries = list(boundaries)

    @property
    def n_forgotten(self) -> int:
        """Tokens that the model does not see."""
        return self.start - self.head

    @property
    def moved(self) -> tuple[int, ...]:
        """Return ``(start,)`` if the window has moved, else nothing: the shifts of cells that are read from here on."""
        return (self.start,) if self.n_forgotten else ()

    def seen(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that the model sees."""
        return [*tokens[: self.head], *tokens[self.start :]]

    def fit(self, n_tokens: int, n_ctx: int) -> int | None:
        """Return where the window has to start before a reply to ``n_tokens`` tokens begins; None if it can stay.

        Raises:
            PromptTooLong: the head leaves no room.
        """
        reserve = n_ctx // 8
        if n_tokens - self.n_forgotten + reserve <= n_ctx:
            return None
        if self.head + reserve >= n_ctx:
            raise PromptTooLong(n_prompt=n_tokens, n_ctx=n_ctx)
        last = self.boundaries[-1] if self.boundaries else 0
        return self._start_for(n_tokens, n_ctx, whole=last if self.head + n_tokens - last + reserve <= n_ctx else None)

    def next_start(self, n_tokens: int, n_ctx: int) -> int:
        """Return where the window has to start so that a reply can continue after ``n_tokens`` tokens."""
        return self._start_for(n_tokens, n_ctx, whole=None)

    def _start_for(self, n_tokens: int, n_ctx: int, *, whole: int | None) -> int:
        """Return the first boundary that leaves half of the room free, else ``whole`` or a position inside a
        message."""
        first = n_tokens - (n_ctx - self.head) // 2
        place = bisect_left(self.boundaries, max(first, self.start + 1))
        if place < len(self.boundaries):
            return self.boundaries[place]
        return max(whole if whole is not None and whole > self.start else first, self.start + 1)
