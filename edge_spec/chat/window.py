"""Which part of a long conversation the model sees."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from edge_spec.errors import PromptTooLong
from edge_spec.generation.context import Notice
from edge_spec.sampling import Sampler
from edge_spec.speculation.loop import Speculator

__all__ = ["Window", "WindowContext"]

_SINKS = 4
"""So many first tokens always stay: attention leans on them (StreamingLLM, arXiv 2309.17453)."""

_READ_AGAIN = "the conversation is read again; what follows may differ where two tokens are equally likely"


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

    def seen(self, tokens: Sequence[int]) -> list[int]:
        """What the model sees of a conversation."""
        return [*tokens[: self.head], *tokens[self.start :]]

    def fit(self, n_tokens: int, n_ctx: int) -> int | None:
        """Where the window has to start before a reply to ``n_tokens`` tokens begins; None if it can stay.

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
        """Where the window has to start so that a reply can continue after ``n_tokens`` tokens."""
        return self._start_for(n_tokens, n_ctx, whole=None)

    def _start_for(self, n_tokens: int, n_ctx: int, *, whole: int | None) -> int:
        """The first boundary that leaves half of the room free, or else ``whole``, or a place inside a message."""
        first = n_tokens - (n_ctx - self.head) // 2
        place = bisect_left(self.boundaries, max(first, self.start + 1))
        if place < len(self.boundaries):
            return self.boundaries[place]
        return max(whole if whole is not None and whole > self.start else first, self.start + 1)


class ReadSession(Protocol):
    """A conversation that models read.

    Attributes:
        was_read: they have read it before, so that reading it again deserves a notice.
    """

    was_read: bool


class WindowContext:
    """Moves a window over a conversation while a reply is written; see ``generation.Context``.

    Args:
        window: moved as it becomes necessary.
        session: the conversation.
    """

    def __init__(self, window: Window, session: ReadSession) -> None:
        self.session = session
        self._window = window

    def require_room(self, n_tokens: int, n_ctx: int) -> None:
        self._window.fit(n_tokens, n_ctx)

    def begin(
        self, speculator: Speculator, text: Sequence[int], sampler: Sampler, *, resumed: bool, notice: Notice
    ) -> None:
        window = self._window
        if not resumed:
            speculator.forget()
            if self.session.was_read:
                notice(_READ_AGAIN)
        self.session.was_read = True
        start = window.fit(len(text), speculator.model.n_ctx)
        if start is not None:
            self._move(speculator, start, notice)
        sampler.forget(window.n_forgotten)
        speculator.begin(window.seen(text), sampler, reuse=True)

    def make_room(self, speculator: Speculator, notice: Notice) -> bool:
        n_tokens = len(speculator.text) + self._window.n_forgotten
        self._move(speculator, self._window.next_start(n_tokens, speculator.model.n_ctx), notice)
        return True

    def can_shrink(self, speculator: Speculator, n_ctx: int) -> bool:
        return self._window.head + n_ctx // 8 < n_ctx

    def _move(self, speculator: Speculator, start: int, notice: Notice) -> None:
        head, forgotten = self._window.head, start - self._window.start
        if head + forgotten < len(speculator.text):
            speculator.cut(head, head + forgotten)
        self._window.start = start
        notice(f"the context is full: the model no longer sees {forgotten} of the oldest tokens")
