"""Replies for an event loop: one thread reads the replies of all requests and drives the rounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from edge_spec.errors import Cancelled
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.reader import Reader
from edge_spec.generation.replies import Replies, advance
from edge_spec.generation.reply import Reply
from edge_spec.memory import Loan
from edge_spec.server.errors import ApiError
from edge_spec.server.work_queue import Ticket

__all__ = ["Work", "Writer"]

_MOST_BEHIND_BYTES = 4 << 20
"""The most unread bytes of an answer before its client is given up."""

_MOST_HELD = 32
"""Number of pieces handed over at a time to requests that are not streamed."""

_GATHER_S = 0.005
"""Seconds to wait for each further request before a first round: prompts that are read together take
less time, and the texts share their decodes from the first one to the last."""

_EVENT_BYTES, _TOP_BYTES = 256, 112
"""Bytes of an event, and of each of the likeliest tokens in it."""

Batch = tuple[int, list[TokenEvent]]
"""The number of a reply, and events of some of its tokens."""


class Work(AsyncIterator[Batch]):
    """The replies to one request, written in one turn: iterate for the number of a reply and its next events, without
    events where it has ended.

    Writing does not wait for the reader, so a slow client delays no other. One that falls too far behind
    is given up.

    Args:
        writer: writes it when it is its turn.
        kept: where the memory of what has been written and not read is claimed, until it is closed.
        in_pieces: whether the reader wants each piece as it comes; else some at a time, which costs less.

    Attributes:
        kept: the same, for what the reader keeps of it.
        replies: the replies; None before its turn. They have ended when the iteration has.
        task: ends when the model is free again.
        given_up: set if the reader has fallen too far behind; its unread batches are dropped.
    """

    def __init__(
        self, ticket: Ticket, writer: Writer, start: Callable[[], Replies], kept: Loan, *, in_pieces: bool
    ) -> None:
        self.replies: Replies | None = None
        self.kept = kept
        self.given_up = asyncio.Event()
        self._start = start
        self._most_held = 1 if in_pieces else _MOST_HELD
        self._writer = writer
        self._ready: Iterator[Batch | None] = iter(())
        self._held: list[Batch | None] = []
        self._n_held = 0
        self._batches: asyncio.Queue[Batch | None] = asyncio.Queue()
        self._error: BaseException | None = None
        self._begun = self._stopped = False
        self._written = asyncio.Event()
        self._behind = 0
        self._ticket = ticket
        ticket.is_used = True
        self.task = asyncio.ensure_future(self._write())
        self.task.add_done_callback(self._over)

    @property
    def answers(self) -> Sequence[Reply]:
        """The replies by number; empty before its turn."""
        return self.replies.answers if self.replies is not None else ()

    async def __anext__(self) -> Batch:
        batch = await self._batches.get()
        if batch is not None:
            self._behind -= _bytes_of(batch)
            self.kept.shrink(_bytes_of(batch))
            return batch
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    async def _write(self) -> None:
        async with self._ticket:
            self._begun = True
            self._writer.write(self)
            # The turn ends only after this: the next request needs a model that has stopped.
            await self._written.wait()

    # --- in the thread that writes

    def begin(self) -> None:
        """Create the replies."""
        try:
            self.replies = self._start()
            self._ready = self.replies.ready_batches()
            if self._stopped:
                self.replies.cancel()
        except BaseException as error:
            self._error = error

    def take_ready(self, reader: Reader) -> bool:
        """Take available events without a round; return whether the work continues."""
        if self.replies is None or self._error is not None:
            return False
        try:
            with self.replies.being_read(reader):
                for batch in self._ready:
                    if batch is None:
                        return self._error is None
                    self.kept.grow(_bytes_of(batch))
                    self._hold(batch)
        except BaseException as error:
            self._error = error
        return False

    def _hold(self, batch: Batch) -> None:
        self._n_held += 1
        before = self._held[-1] if self._held else None
        if before is not None and before[0] == batch[0] and before[1] and batch[1]:
            before[1].extend(batch[1])
        else:
            self._held.append(batch)

    def fail(self, error: BaseException) -> None:
        """End the work with an error."""
        self._error = error

    def take_held(self, *, is_over: bool) -> list[Batch | None]:
        """Return the batches to hand over now.

        Args:
            is_over: nothing more comes.
        """
        if is_over:
            try:
                if self.replies is not None:
                    self.replies.close()
            except Exception as error:
                # An error of one request must not end the thread of all.
                self._error = self._error or error
            self._held.append(None)
        elif self._n_held < self._most_held:
            return []
        held, self._held, self._n_held = self._held, [], 0
        return held

    # --- in the event loop

    def hand_over(self, batches: Sequence[Batch | None]) -> None:
        """Hand batches to the reader; None marks the end."""
        for batch in batches:
            if batch is None:
                self._written.set()
            if not self.given_up.is_set():
                self._behind += _bytes_of(batch) if batch is not None else 0
                self._batches.put_nowait(batch)
                if self._behind > _MOST_BEHIND_BYTES:
                    self._give_up()

    def _give_up(self) -> None:
        self.given_up.set()
        self.stop()
        self._error = _too_slow()
        self._batches = asyncio.Queue()
        self._batches.put_nowait(None)

    def _over(self, task: asyncio.Task[None]) -> None:
        # It may have been cancelled before it took its first step.
        self._ticket.give_up()
        if not self._begun:
            self._error = (task.exception() if not task.cancelled() else None) or Cancelled()
            self._batches.put_nowait(None)

    def stop(self) -> None:
        """Request a stop without waiting for it."""
        self._stopped = True
        replies = self.replies
        if replies is not None:
            # The writing thread ends the replies: ending them here may wait for the model.
            replies.ask_to_stop()
        elif not self._begun:
            self.task.cancel()

    def close(self) -> None:
        """Stop, and drop unread batches. Safe to call twice."""
        self.stop()
        self._batches = asyncio.Queue()
        self.kept.end()


def _bytes_of(batch: Batch) -> int:
    return sum(_EVENT_BYTES + _TOP_BYTES * len(event.top) for event in batch[1])


def _too_slow() -> ApiError:
    return ApiError(
        408,
        f"more than {_MOST_BEHIND_BYTES >> 20} MiB of the answer wait for this client; read it faster",
        code="slow_client",
    )


class Writer:
    """A thread that writes for all requests whose turn it is: what a round brings for each is taken, and handed to the
    event loop together. A thread for each request would have to be woken for each of its tokens.

    Args:
        loop: the event loop.
        n_coming: returns how many requests have come that have not been given to it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, n_coming: Callable[[], int]) -> None:
        self._loop = loop
        self._n_coming = n_coming
        self._asked: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="edge-spec-writer", daemon=True)
        self._thread.start()

    def write(self, work: Work) -> None:
        """Add the replies of a request."""
        self._asked.put(work)

    def close(self) -> None:
        """End the thread. Nothing may be added any more."""
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        works, reader = list[Work](), Reader.here()
        # Drop references to ended work before waiting.
        while self._begin(works):
            with suppress(Empty):
                while self._n_coming():
                    if not self._begin(works, _GATHER_S):
                        return
            while works:
                while not self._asked.empty():
                    if not self._begin(works):
                        return
                works = self._advance(works, reader)

    def _begin(self, works: list[Work], patience_s: float | None = None) -> bool:
        """Begin the next work, waiting for one; return False at the end."""
        work = self._asked.get(timeout=patience_s)
        if work is not None:
            work.begin()
            works.append(work)
        return work is not None

    def _advance(self, works: Sequence[Work], reader: Reader) -> list[Work]:
        """Take the results of the last round, and do another one; return the work that continues."""
        going_on = [work for work in works if work.take_ready(reader)]
        held = [(work, work.take_held(is_over=work not in going_on)) for work in works]
        if handed := [each for each in held if each[1]]:
            self._loop.call_soon_threadsafe(_hand_over, handed)
        try:
            if going_on:
                advance([work.replies for work in going_on if work.replies is not None], reader)
        except Cancelled:
            # Cancelled work ends when it is next examined.
            pass
        except BaseException as error:
            for work in going_on:
                work.fail(error)
        return going_on


def _hand_over(handed: Sequence[tuple[Work, Sequence[Batch | None]]]) -> None:
    for work, batches in handed:
        work.hand_over(batches)
