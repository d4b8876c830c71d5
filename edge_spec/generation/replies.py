"""Several replies, written together where the engine can, else one after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from edge_spec.errors import Cancelled
from edge_spec.generation.answers import Answer
from edge_spec.generation.batch import OF_ONE_TEXT, Batch, Piece
from edge_spec.generation.context import Context, ModelAccess
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.interruptible import Interruptible
from edge_spec.generation.options import ignore
from edge_spec.generation.reader import AwaitedPieces, Reader
from edge_spec.generation.reply import Reply

__all__ = ["Replies"]


class Replies(Interruptible, Iterator[tuple[int, str]]):
    """Writes several replies, when it is asked for the next piece: iterate over it for pairs of a reply's number and
    a piece of its text, or call ``read``.

    On an engine that can advance several texts in one decode they are written together, as many at a time as a decode
    has rows and the memory budget has room for; on others one after the other. Each has the text that it has alone.
    An error of one of them is found in its ``error`` and leaves the others alone. As with a single reply: read it to
    its end, cancel or close it, use it as a context manager, or drop it; and ``async for`` and ``await`` work as well.

    Args:
        context: makes what keeps a reply inside the model's context, where they are written one after the other.
        timeout: seconds after which all end, see ``ReplyOptions``; None for no limit.
        on_notice: called with each sentence that the reader should see.

    Attributes:
        answers: what has been written of each.
        notices: sentences that the reader should see.
        reader: who reads it.
    """

    _has_ended = True
    _turn: ExitStack | None = None

    def __init__(
        self,
        access: ModelAccess,
        answers: Sequence[Answer],
        next_limit: Callable[[], int],
        *,
        context: Callable[[], Context] = Context,
        timeout: float | None = None,
        on_notice: Callable[[str], object] = ignore,
    ) -> None:
        super().__init__(timeout)
        self.notices: list[str] = []
        self.answers = tuple(answers)
        self._access = access
        self._next_limit = next_limit
        self._context = context
        self._on_notice = on_notice
        self._ready: deque[Piece] = deque()
        self._batch: Batch | None = None
        # Where replies are written one after the other: the one that is.
        self._alone = len(self.answers) == 1
        self._reply: Reply | None = None
        self._ending = threading.Lock()
        self._has_ended = False

    # --- what has been written

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> Answer:
        return self.answers[index]

    @property
    def texts(self) -> list[str]:
        """What has been handed out of each so far."""
        return [answer.text for answer in self.answers]

    def __repr__(self) -> str:
        n_ended = sum(answer.finish_reason is not None for answer in self.answers)
        return f"<Replies: {n_ended} of {len(self)} written>"

    # --- reading them

    def __next__(self) -> tuple[int, str]:
        piece = self.next_piece(Reader.here())
        if piece is None:
            raise StopIteration
        return piece

    def next_piece(self, reader: Reader) -> tuple[int, str] | None:
        """Write the next piece of one of them for a reader; None at the end of all."""
        with self._advanced_by(reader):
            try:
                while not self._ready and not self._has_ended:
                    self._advance()
            except Cancelled:
                self._end_cancelled()
            except BaseException as error:
                # Before they have begun, they can still begin later.
                if self._has_begun:
                    self._end("error", error if isinstance(error, Exception) else None)
                raise
            if not self._ready:
                return None
            answer, piece = self._ready.popleft()
            answer.hand_out(piece)
            return answer.index, piece

    def read(self, on_piece: Callable[[int, str], object] = lambda index, piece: None) -> list[str]:
        """Write all to the end, handing every piece to ``on_piece``; returns the texts."""
        for index, piece in self:
            on_piece(index, piece)
        return self.texts

    def event_batches(self) -> Iterator[tuple[int, list[TokenEvent]]]:
        """Writes all like iterating does: pairs of a reply's number and its next events, see ``Reply.events``; without
        events where that reply has ended."""
        for answer in self.answers:
            answer.tell_events()
        unfinished = [*self.answers]
        for index, _ in self:
            yield index, self.answers[index].take_events()
            for answer in [answer for answer in unfinished if answer.is_complete]:
                unfinished.remove(answer)
                yield from _last_events(answer)
        for answer in unfinished:
            yield from _last_events(answer)

    def __aiter__(self) -> AsyncIterator[tuple[int, str]]:
        """Return the same pairs for ``async for``; they are written in a thread. A cancelled task cancels all."""
        return AwaitedPieces(self)

    def __await__(self) -> Generator[Any, None, list[str]]:
        """Return the whole texts."""
        return self._read_async().__await__()

    async def _read_async(self) -> list[str]:
        async for _ in self:
            pass
        return self.texts

    # --- ending them

    def cancel(self, index: int | None = None) -> None:
        """Stop one of them soon, or all, from any thread; if nobody is reading them now, all end at once. What was
        written stays."""
        if index is None:
            super().cancel()
            return
        answer, reply = self.answers[index], self._reply
        answer.is_cancelled = True
        if reply is not None and answer.is_written_by(reply):
            reply.ask_to_stop()

    def ask_to_stop(self) -> None:
        self._cancelled.set()
        with self._ending:
            reply = self._reply
            # Without a turn, the models work for somebody else.
            if self._turn is not None:
                self._access.speculator.cancel()
        if reply is not None:
            reply.ask_to_stop()
        self._access.lock.wake()

    def __del__(self) -> None:
        if not self._has_ended:
            self._end("cancelled")

    # --- what a memory guard sees

    @property
    def owner(self) -> object:
        """These replies: they belong to no conversation."""
        return self

    def notice(self, sentence: str) -> None:
        """Tell the reader something; what several of them say, once."""
        if sentence not in self.notices:
            self.notices.append(sentence)
            self._on_notice(sentence)

    def can_shrink(self, n_ctx: int) -> bool:
        """Return whether all could continue in a context of ``n_ctx`` tokens."""
        return all(len(answer.prompt) + len(answer.token_ids) < n_ctx for answer in self._unfinished())

    # --- writing them

    @property
    def _has_begun(self) -> bool:
        """Whether an error that comes now is one of writing."""
        if self._alone:
            return self._reply is None or self._reply.finish_reason is not None
        return self._turn is not None

    def _unfinished(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.finish_reason is None]

    def _advance(self) -> None:
        self._check_cancelled()
        if self._reply is None and not self._unfinished():
            self._end("")
        elif self._alone:
            self._advance_alone()
        elif self._turn is None:
            self._begin()
        else:
            self._round()

    def _begin(self) -> None:
        """Wait for a turn."""
        turn = self._access.lock.turn(self)
        with self._ending:
            self._turn = turn
        self._access.speculator.resume()
        if not self._access.guard.before_reply(self):
            self._end("memory")

    def _round(self) -> None:
        if not self._access.guard.before_round(self):
            self._end("memory")
            return
        # A target that another one has replaced meanwhile does not tell of a cancel.
        self._check_cancelled()
        access, model = self._access, self._access.speculator.model
        if self._batch is None or self._batch.model is not model:
            self._close_batch()
            ledger = access.sessions.cache.ledger
            self._batch = Batch.open(model, access.vocabulary, ledger, self._unfinished())
        if self._batch is None:
            self._alone = True
            self._end_turn()
        else:
            self._queue(self._batch.round())

    def _advance_alone(self) -> None:
        """Write on in the reply that is being written, or begin the next one."""
        reply = self._reply
        writing = (each for each in self.answers if reply is not None and each.is_written_by(reply))
        answer = next(writing, None) or self._unfinished()[0]
        if reply is None and answer.is_cancelled:
            answer.end("cancelled")
            return
        try:
            if reply is None:
                own = replace(answer.request.options, on_notice=self.notice, timeout=self._deadline.left_s)
                asked = replace(answer.request, options=own)
                reply = self._reply = Reply(self._access, asked, self._next_limit, context=self._context())
                answer.write_with(reply)
            self._queue([(answer, next(reply, ""))])
        except OF_ONE_TEXT as error:
            answer.fail(error)
            if reply is not None:
                self._queue([(answer, next(reply, ""))])
        if reply is not None and reply.finish_reason is not None:
            # It may have been ended between two pieces, with text that was still held back.
            self._queue([(answer, "".join(reply))])
            self._reply = None

    def _queue(self, pieces: Sequence[Piece]) -> None:
        for answer, piece in pieces:
            if piece:
                answer.queue(1)
                self._ready.append((answer, piece))

    def _end(self, reason: str, error: Exception | None = None) -> None:
        """End all that have not ended. Whatever fails, the next reply gets its turn."""
        with ExitStack() as always:
            always.callback(self._end_turn)
            always.callback(self._end_all, reason, error)
            reply, self._reply = self._reply, None
            if reply is not None:
                reply.close()

    def _end_all(self, reason: str, error: Exception | None) -> None:
        if self._batch is not None:
            self._queue(self._batch.end(reason, error))
        for answer in self._unfinished():
            answer.end(reason, error)
        self._has_ended = True

    def _end_turn(self) -> None:
        self._close_batch()
        with self._ending:
            turn, self._turn = self._turn, None
            if turn is not None:
                # A cancel that came between two decodes ends here, not in the next reply.
                self._access.speculator.resume()
        if turn is not None:
            turn.close()

    def _close_batch(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.close()


def _last_events(answer: Answer) -> Iterator[tuple[int, list[TokenEvent]]]:
    rest = answer.take_events()
    if rest:
        yield answer.index, rest
    yield answer.index, []
