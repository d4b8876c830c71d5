"""A reply: what users iterate over."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Self

from edge_spec.errors import AlreadyRead, Cancelled, Closed
from edge_spec.generation.context import Context
from edge_spec.generation.driver import Driver
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.interruptible import Interruptible
from edge_spec.generation.reader import AwaitedPieces, Reader
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.tools.answers import parts_of
from edge_spec.generation.tools.calls import ToolCall
from edge_spec.generation.writing import Outcome, Recorder, Refused, Writing
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.statistics import Statistics

__all__ = ["Reply", "TokenEvents"]


class Reply(Interruptible[str]):
    """Writes a reply piece by piece, when it is asked for the next one: iterate over it, or call ``read``.

    Also for ``async for``, and ``await`` for the whole text. Several can be read side by side, by one thread or by
    many: whoever reads one advances the others. One that is not read to its end keeps its place in memory: cancel or
    close it, use it as a context manager, or drop it.

    Attributes:
        index: its number among those that were asked for together.
        prompt: token ids of the prompt; empty if that could not be tokenized.
        settings: of the sampler.
        group: those that were asked for together with it; None if it is alone.
        error: why it could not be written, where ``finish_reason`` is ``error``; None otherwise.
        notices: sentences that the reader should see, such as what the model no longer sees, each once.
        reader: who reads it.
        ready_events: what ``events`` tells next.

    Raises:
        PromptTooLong: the context has no room for it.
    """

    # Whatever fails while it is built, there is nothing to end.
    _written: Writing | Refused = Refused(())

    def __init__(
        self,
        driver: Driver,
        request: ReplyRequest,
        next_limit: Callable[[], int],
        *,
        context: Context | None = None,
        recorder: Recorder | None = None,
        index: int = 0,
        group: Interruptible[Any] | None = None,
    ) -> None:
        context, n_ctx = context or Context(), driver.target.pool.n_ctx
        context.require_room(len(request.prompt) + len(request.written), n_ctx)
        self._start(driver, request.prompt, request.settings, index, group, request.options.timeout)
        self._untold.extend(request.notices)
        self._options = request.options
        self._recorder = recorder
        self._context = context
        self._written = Writing(self, request, driver.vocabulary, n_ctx, next_limit, context, recorder)

    @classmethod
    def refused(
        cls, driver: Driver, prompt: Sequence[int], settings: SamplerSettings, error: Exception, index: int
    ) -> Self:
        """Return one of several replies that has ended with an error before it was begun."""
        reply = cls.__new__(cls)
        reply._start(driver, prompt, settings, index, None, None)
        reply._context = Context()
        reply._written, reply.error = Refused(reply.prompt), error
        return reply

    def _start(
        self,
        driver: Driver,
        prompt: Sequence[int],
        settings: SamplerSettings,
        index: int,
        group: Interruptible[Any] | None,
        timeout: float | None,
    ) -> None:
        super().__init__(timeout)
        self.index = index
        self.prompt = tuple(prompt)
        self.settings = settings
        self.error: BaseException | None = None
        self.notices: list[str] = []
        self._driver = driver
        self.group = group
        self._untold: deque[str] = deque()
        self.ready_events: deque[TokenEvent] = deque()

    # --- ways to read it

    def read(self, on_piece: Callable[[str], object] = lambda piece: None) -> str:
        """Write to the end, handing every piece to ``on_piece``; returns the whole text."""
        for piece in self:
            on_piece(piece)
        return self.text

    def parts(self) -> Iterator[tuple[bool, str]]:
        """Writes the reply like iterating does, as pairs: whether it is a thought of the model, and the text. Calls are
        left out, see ``tool_calls``."""
        pieces = iter(self)
        parser = self._written.parser(again=pieces is not self)
        for piece in pieces:
            yield from parts_of(parser.push(piece))
        yield from parts_of(parser.finish(is_cut=self.finish_reason not in ("eos", "stop")))

    def events(self) -> TokenEvents:
        """Writes the reply like iterating does, token by token, with what is known of each: for ``for`` and
        ``async for``. They are told once: keep them, ``[*reply.events()]``, to see them again.

        Raises:
            AlreadyRead: the reply has been read to its end.
        """
        self._require_unread()
        self.tell_events()
        return TokenEvents(self)

    def event_batches(self) -> Iterator[list[TokenEvent]]:
        """The same events, together with those that came at the same time: the tokens of one round, or of a few.

        Raises:
            AlreadyRead: the reply has been read to its end.
        """
        self._require_unread()
        self.tell_events()
        while next(self, None) is not None:
            yield self.take_events()
        rest = self.take_events()
        if rest:
            yield rest

    def _require_unread(self) -> None:
        written = self._written
        if self.is_complete and written.has_tokens and not written.has_events and not self.ready_events:
            raise AlreadyRead

    def __await__(self) -> Generator[Any, None, str]:
        """Return the whole text."""
        return self.aread().__await__()

    async def aread(self) -> str:
        """Write to the end; returns the whole text. A coroutine, as tasks need it: ``create_task(reply.aread())``."""
        async for _ in self:
            pass
        return self.text

    # --- what has been written

    @property
    def text(self) -> str:
        """What has been handed out so far."""
        return self._written.text

    @property
    def content(self) -> str:
        """The whole answer: what the prompt or a continued reply wrote of it, and what is not handed out yet."""
        return self._written.content

    @property
    def answer(self) -> str:
        """The answer so far, without thoughts and calls."""
        return self._written.parsed[0]["content"] or ""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The functions that it calls, as far as these calls are written. One that was cut off is not among them."""
        return self._written.parsed[1]

    @property
    def message(self) -> dict[str, Any]:
        """It as a message in OpenAI's form, to be sent with those that come after it: its answer, its thought as
        ``reasoning_content`` if there is one, and its calls."""
        message, calls = self._written.parsed
        return {**message, "tool_calls": [call.to_json() for call in calls]} if calls else message

    @property
    def token_ids(self) -> list[int]:
        """Token ids written so far, the end token included."""
        return self._written.token_ids

    @property
    def finish_reason(self) -> str | None:
        """``None`` while it is written, then ``eos`` (the model ended it), ``stop`` (a stop string), ``length``
        (``max_tokens``), ``context`` (no room), ``memory`` (none left), ``timeout``, ``cancelled`` or ``error``."""
        return self._written.finish_reason

    @property
    def statistics(self) -> Statistics:
        """What speculation did. A decode that several replies share counts for each by its rows."""
        return self._written.statistics

    @property
    def identity(self) -> str:
        """``bitwise``: the text is the one that plain decoding writes, undisturbed.

        ``rounding``: words may differ where two are almost equally likely, since this device's arithmetic depends on
        drafts (see ``TextModel.identity``), or since something was computed again: a notice then comes before the text.
        """
        return "rounding" if self._context.departs else self._driver.target.pool.capabilities.identity

    @property
    def n_reused(self) -> int:
        """How many tokens of the prompt were not read, since the models' caches held them."""
        return self._context.n_reused

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """How many tokens of the prompt have been read, and how many have to be."""
        return self._written.prompt_progress

    @property
    def drawn(self) -> Mapping[str, float]:
        """What the tokens do not tell of the draw so far; needed to continue it later."""
        return self._written.drawn

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and its conversation holds it."""
        return self._written.is_recorded

    @property
    def has_begun(self) -> bool:
        """Whether anything has been read or written for it."""
        return self._written.has_begun

    @property
    def is_complete(self) -> bool:
        """Whether it has ended, and all of its text has been handed out."""
        return self._written.is_complete and not self._written.held

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        state = self.finish_reason or ("being written" if self.token_ids else "not begun")
        return f"<Reply: {len(self.token_ids)} tokens, {state}>"

    # --- reading it

    def _pieces_again(self) -> Iterator[str] | None:
        return iter(self._written.pieces) if self.is_complete else None

    def _next_piece(self) -> str | None:
        while not (piece := self._written.hand_out()) and not self._written.is_complete:
            try:
                outcome = self._next_outcome(self.writing)
                self.tell()
                if outcome is not None and (error := self.took(outcome)) is not None:
                    raise error
            except Cancelled:
                self._end_cancelled()
            except Closed:
                raise
            except BaseException as error:
                # Before it has begun, it can still begin later. What is no error, such as Ctrl-C, cancels it.
                if self.has_begun:
                    self._end("error" if isinstance(error, Exception) else "cancelled")
                raise
        return piece or None

    def _next_outcome(self, writing: Writing) -> Outcome | None:
        if writing.is_over:
            # Nobody writes it any more.
            return writing.take()
        self._check_cancelled()
        found = self._driver.next([writing], self.reader, lambda: self.is_cancelled)
        return found[1] if found is not None else None

    def took(self, outcome: Outcome) -> BaseException | None:
        """Take in what a round has brought; return the error that ended the reply, if one did."""
        self.error = outcome.error
        if self.writing.is_complete:
            self.writing.record()
        return outcome.error

    def tell(self) -> None:
        """Tell the reader what there is to tell, in the reader's own thread."""
        writing = self.writing
        while writing.untold:
            self._options.on_progress("reading", *writing.untold.popleft())
        while self._untold:
            sentence = self._untold.popleft()
            if sentence not in self.notices:
                self.notices.append(sentence)
            self._options.on_notice(sentence)
            if self._recorder is not None:
                self._recorder.notice(sentence)

    @property
    def writing(self) -> Writing:
        """What is written of it, for what writes it."""
        assert isinstance(self._written, Writing)
        return self._written

    def tell_events(self) -> None:
        self._written.tell_events()

    def take_events(self) -> list[TokenEvent]:
        return self._written.take_events()

    # --- ending it

    @property
    def is_cancelled(self) -> bool:
        """Whether it has to stop: it was asked to, or its time is up."""
        return super().is_cancelled or (self.group is not None and self.group.is_cancelled)

    def ask_to_stop(self) -> None:
        self._cancelled.set()
        if not self._written.is_recorded:
            self._driver.stop(self.writing)

    def end(self, reason: str) -> None:
        """End it where its reader is, if it has not ended."""
        if self._written.is_recorded:
            return
        if self.writing.is_over and not self.writing.n_ahead:
            # It has ended by itself.
            while self.writing.has_news:
                self.took(self.writing.take())
            return
        try:
            with self._driver.lock.turn():
                self._driver.end(self.writing, reason)
        except Closed:
            # Nobody else writes it any more.
            self._driver.end(self.writing, reason)
        finally:
            self.writing.record()

    _end = end

    def __del__(self) -> None:
        # A reply that is dropped has been cancelled. Python may find it in the middle of a round.
        written = self._written
        if not written.is_recorded:
            driver = self._driver
            assert isinstance(written, Writing)
            driver.lock.soon(lambda: driver.drop(written))

    # --- what its driver and a memory guard see

    @property
    def owner(self) -> object:
        """The conversation that it belongs to, or itself."""
        return self._context.session or self

    def notice(self, sentence: str, *, departs: bool = False) -> None:
        """Tell the reader something, as soon as it looks; see ``Notice``."""
        if departs:
            self._context.departs = True
        self._untold.append(sentence)

    def can_shrink(self, n_ctx: int) -> bool:
        """Return whether it could continue in a context of ``n_ctx`` tokens."""
        place = self.writing.place
        return place is not None and self._context.can_shrink(place, n_ctx)

    def is_left_by(self, reader: Reader, patience_s: float) -> bool:
        """Return whether its reader has left it, or cannot read on while ``reader`` waits."""
        own = self.group or self
        return own.is_advancing_here or reader.blocks(own.reader) or own.unread_s >= patience_s


class TokenEvents(Iterator[TokenEvent], AsyncIterator[TokenEvent]):
    """The events of a reply, which is written as they are asked for."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        # With the reply: another loop goes on where this one is left.
        self._ready = reply.ready_events
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
        self._awaited = self._awaited or AwaitedPieces(self._reply)
        while not self._ready and not self._has_ended:
            self._has_ended = await anext(self._awaited, None) is None
            self._ready.extend(self._reply.take_events())
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()
