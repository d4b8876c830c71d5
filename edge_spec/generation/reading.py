"""Ways to read a reply: piece by piece, as a whole, by its thoughts, token by token; in threads and event loops."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from edge_spec.generation.events import TokenEvent
from edge_spec.generation.interruptible import Interruptible
from edge_spec.generation.reader import AwaitedPieces, Reader
from edge_spec.generation.thoughts import Thinking

__all__ = ["ReadableReply", "TokenEvents"]


class ReadableReply(Interruptible[str], Iterator[str]):
    """A reply that is read by iterating over it, with ``async for``, ``await``, or one of its methods."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What has been handed out so far."""

    @property
    @abstractmethod
    def content(self) -> str:
        """All of it: with what the prompt and an earlier reply have written of it, and what is not handed out yet."""

    @property
    @abstractmethod
    def finish_reason(self) -> str | None:
        """Why it ended; ``None`` while it is written."""

    @abstractmethod
    def tell_events(self) -> None:
        """Collect events from now on."""

    @abstractmethod
    def take_events(self) -> list[TokenEvent]:
        """Return the events that nobody has taken yet."""

    def __next__(self) -> str:
        here = self.reader if self.reader.is_this_thread else Reader.here()
        piece = self.next_piece(here)
        if piece is None:
            raise StopIteration
        return piece

    def read(self, on_piece: Callable[[str], object] = lambda piece: None) -> str:
        """Write to the end, handing every piece to ``on_piece``; returns the whole text."""
        for piece in self:
            on_piece(piece)
        return self.text

    def parts(self) -> Iterator[tuple[bool, str]]:
        """Writes the reply like iterating does, as pairs: whether it is a thought of the model, and the text."""
        thinking = Thinking(self.content)
        for piece in self:
            yield from thinking.push(piece)
        yield from thinking.finish(is_cut=self.finish_reason not in ("eos", "stop"))

    def events(self) -> TokenEvents:
        """Writes the reply like iterating does, token by token, with what is known of each: for ``for`` and
        ``async for``."""
        self.tell_events()
        return TokenEvents(self)

    def event_batches(self) -> Iterator[list[TokenEvent]]:
        """The same events, together with those that came at the same time: the tokens of one round, or of a few."""
        self.tell_events()
        for _ in self:
            yield self.take_events()
        rest = self.take_events()
        if rest:
            yield rest

    def __aiter__(self) -> AsyncIterator[str]:
        """Return the pieces for ``async for``; they are written in a thread. A cancelled task cancels the reply."""
        return AwaitedPieces(self)

    def __await__(self) -> Generator[Any, None, str]:
        """Return the whole text."""
        return self._read_async().__await__()

    async def _read_async(self) -> str:
        async for _ in self:
            pass
        return self.text


class TokenEvents(Iterator[TokenEvent], AsyncIterator[TokenEvent]):
    """The events of a reply, which is written as they are asked for."""

    def __init__(self, reply: ReadableReply) -> None:
        self._reply = reply
        self._ready: deque[TokenEvent] = deque()
        self._awaited: AsyncIterator[str] | None = None
        self._has_ended = False

    def __iter__(self) -> TokenEvents:
        return self

    def __aiter__(self) -> TokenEvents:
        return self

    def __next__(self) -> TokenEvent:
        while not self._ready and not self._has_ended:
            self._has_ended = next(self._reply, None) is None
            self._ready.extend(self._reply.take_events())
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    async def __anext__(self) -> TokenEvent:
        self._awaited = self._awaited or aiter(self._reply)
        while not self._ready and not self._has_ended:
            self._has_ended = await anext(self._awaited, None) is None
            self._ready.extend(self._reply.take_events())
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()
