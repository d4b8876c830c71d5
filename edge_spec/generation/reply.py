"""A reply: what users iterate over."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

from edge_spec.errors import AlreadyRead, Closed
from edge_spec.generation.context import Context
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.prefix_cache import CachedPrompt
from edge_spec.generation.readable import Readable
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.scheduler import Scheduler
from edge_spec.generation.sequence import Claim, Recorder, Step
from edge_spec.generation.sequence import Sequence as TextSequence
from edge_spec.generation.tools.answers import parts_of
from edge_spec.generation.tools.calls import ToolCall
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.statistics import Statistics

__all__ = ["Reply", "TokenEvents"]


class Reply(Readable[str]):
    """Writes a reply piece by piece, when it is asked for the next one: iterate over it, or call ``read``.

    Also for ``async for``, and ``await`` for the whole text. Several can be read side by side, by one thread or by
    many: whoever reads one advances the others. One that is not read to its end keeps its place in memory: cancel or
    close it, use it as a context manager, or drop it.

    Attributes:
        index: its number among those that were asked for together.
        prompt: token ids of the prompt; empty if that could not be tokenized.
        settings: of the sampler.
        sequence: its text, for what writes it.
        notices: sentences that the reader should see, such as what the model no longer sees, each once.
        ready_events: what ``events`` tells next.

    Args:
        scheduler: writes it.
        next_limit: called before a round for the most tokens to draft.
        context: keeps the text inside the model's context.
        recorder: keeps what becomes of it.
        group: what is wanted of those that were asked for together with it.

    Raises:
        PromptTooLong: the context has no room for it.
    """

    # If building it fails, there is nothing to end.
    sequence: TextSequence = None  # type: ignore[assignment]

    def __init__(
        self,
        scheduler: Scheduler,
        request: ReplyRequest,
        next_limit: Callable[[], int],
        *,
        context: Context | None = None,
        recorder: Recorder | None = None,
        index: int = 0,
        group: Claim | None = None,
    ) -> None:
        context = context or Context(CachedPrompt() if request.options.reuse else None)
        n_ctx = scheduler.target.pool.n_ctx
        context.require_room(len(request.prompt) + len(request.written), n_ctx)
        timeout = request.options.timeout if group is None else None
        self._begin(scheduler, request, n_ctx, Claim(timeout, group), next_limit, context, recorder, index)

    @classmethod
    def refused(
        cls, scheduler: Scheduler, request: ReplyRequest | None, settings: SamplerSettings, error: Exception, index: int
    ) -> Self:
        """Return one of several replies that has ended with an error before it was begun.

        Args:
            request: what was asked for; None if its prompt could not be tokenized.
        """
        reply = cls.__new__(cls)
        asked = request or ReplyRequest(prompt=(0,), settings=settings)
        reply._begin(scheduler, asked, 0, Claim(None), lambda: 0, Context(), None, index)
        if request is None:
            reply.prompt = ()
            reply.sequence.statistics.prompt_tokens = 0
        reply.sequence.refuse(error)
        return reply

    def _begin(
        self,
        scheduler: Scheduler,
        request: ReplyRequest,
        n_ctx: int,
        claim: Claim,
        next_limit: Callable[[], int],
        context: Context,
        recorder: Recorder | None,
        index: int,
    ) -> None:
        super().__init__(scheduler, claim)
        self.index = index
        self.prompt = tuple(request.prompt)
        self.settings = request.settings
        self.notices: list[str] = []
        self.ready_events: deque[TokenEvent] = deque()
        self._options = request.options
        self.sequence = TextSequence(request, scheduler.vocabulary, n_ctx, claim, next_limit, context, recorder)

    # --- ways to read it

    def read(self, on_piece: Callable[[str], object] | None = None) -> str:
        """Write to the end, handing every piece to ``on_piece``; returns the whole text."""
        if on_piece is None:
            self._read_on()
        else:
            for piece in self:
                on_piece(piece)
        return self.text

    def parts(self) -> Iterator[tuple[bool, str]]:
        """Writes the reply like iterating does, as pairs: whether it is a thought of the model, and the text. Calls are
        left out, see ``tool_calls``."""
        pieces = iter(self)
        parser = self.sequence.parser(again=pieces is not self)
        for piece in pieces:
            yield from parts_of(parser.push(piece))
        yield from parts_of(parser.finish(is_cut=self.is_cut))

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
        sequence = self.sequence
        if self.is_complete and sequence.has_tokens and not sequence.has_events and not self.ready_events:
            raise AlreadyRead

    def __await__(self) -> Generator[Any, None, str]:
        """Return the whole text."""
        return self.aread().__await__()

    async def aread(self) -> str:
        """Write to the end; returns the whole text. A coroutine, as tasks need it: ``create_task(reply.aread())``."""
        await self._read_on_async()
        return self.text

    # --- what has been written

    @property
    def text(self) -> str:
        """What has been handed out so far."""
        return self.sequence.text

    @property
    def content(self) -> str:
        """The whole answer: what the prompt or a continued reply wrote of it, and what is not handed out yet."""
        return self.sequence.content

    @property
    def answer(self) -> str:
        """The answer so far, without thoughts and calls."""
        return self.sequence.parsed[0]["content"] or ""

    @property
    def is_all_thought(self) -> bool:
        """True if it has thoughts, and no answer or call so far."""
        message = self.message
        return bool(message.get("reasoning_content")) and not (message["content"] or message.get("tool_calls"))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The functions that it calls, as far as these calls are written. One that was cut off is not among them."""
        return self.sequence.parsed[1]

    @property
    def message(self) -> dict[str, Any]:
        """It as a message in OpenAI's form, to be sent with those that come after it: its answer, its thought as
        ``reasoning_content`` if there is one, and its calls."""
        message, calls = self.sequence.parsed
        return {**message, "tool_calls": [call.to_json() for call in calls]} if calls else message

    @property
    def token_ids(self) -> list[int]:
        """Token ids written so far, the end token included."""
        return self.sequence.token_ids

    @property
    def finish_reason(self) -> str | None:
        """``None`` while it is written, then ``eos`` (the model ended it), ``stop`` (a stop string), ``length``
        (``max_tokens``), ``context`` (no room), ``memory`` (none left), ``timeout``, ``cancelled`` or ``error``."""
        return self.sequence.finish_reason

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it; None where none did."""
        return self.sequence.stopped_by

    @property
    def is_cut(self) -> bool:
        """Whether it has ended elsewhere than at an end of its own."""
        return self.sequence.is_cut

    @property
    def statistics(self) -> Statistics:
        """What speculation did. A decode that several replies share counts for each by its rows."""
        return self.sequence.statistics

    @property
    def identity(self) -> str:
        """``bitwise``: the text is the one that plain decoding writes, undisturbed.

        ``rounding``: words may differ where two are almost equally likely, since this device's arithmetic depends on
        drafts (see ``TextModel.identity``), or since something was computed again: a notice then comes before the text.
        """
        return "rounding" if self.sequence.context.departs else self._scheduler.target.pool.capabilities.identity

    @property
    def n_reused(self) -> int:
        """How many tokens of the prompt were not read, since the models' caches held them."""
        return self.sequence.context.n_reused

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """How many tokens of the prompt have been read, and how many have to be."""
        return self.sequence.prompt_progress

    @property
    def error(self) -> BaseException | None:
        """Why it could not be written, where ``finish_reason`` is ``error``; None otherwise."""
        return self.sequence.error

    @property
    def drawn(self) -> Mapping[str, float]:
        """What the tokens do not tell of the draw so far; needed to continue it later."""
        return self.sequence.drawn

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and its conversation holds it."""
        return self.sequence.is_recorded

    @property
    def has_begun(self) -> bool:
        """Whether anything has been read or written for it."""
        return self.sequence.has_begun

    @property
    def is_complete(self) -> bool:
        """Whether it has ended, and all of its text has been handed out."""
        return self.sequence.is_complete and not self.sequence.held

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        state = self.finish_reason or ("being written" if self.token_ids else "not begun")
        return f"<Reply: {len(self.token_ids)} tokens, {state}>"

    # --- reading it

    def _pieces_again(self) -> Iterator[str] | None:
        return iter(self.sequence.pieces) if self.is_complete else None

    def sequences(self) -> Sequence[TextSequence]:
        return (self.sequence,)

    def ready_piece(self) -> str | None:
        while not (piece := self.sequence.hand_out()):
            step = self.next_step()
            if step is None:
                return None
            if step.error is not None:
                raise step.error
        return piece

    def next_step(self) -> Step | None:
        """Take what a step has brought, and tell the reader what there is to tell; None if there is nothing."""
        sequence = self.sequence
        step = sequence.take()
        if step is not None:
            if step.progress is not None:
                self._options.on_progress("reading", *step.progress)
            if step.notice is not None:
                if step.notice not in self.notices:
                    self.notices.append(step.notice)
                self._options.on_notice(step.notice)
                sequence.tell(step.notice)
        if sequence.is_complete:
            sequence.record()
        return step

    def tell_events(self) -> None:
        """Collect events from now on."""
        sequence = self.sequence
        if sequence.arrival and not sequence.is_over and not sequence.tells_events:
            with suppress(Closed), self._scheduler.worker.pause():
                sequence.tell_events()
        else:
            sequence.tell_events()

    def take_events(self) -> list[TokenEvent]:
        """Return the events of what has been read, once."""
        return self.sequence.take_events()

    # --- ending it

    def ask_to_stop(self) -> None:
        self.claim.is_cancelled = True
        self._scheduler.stop(self.sequence)

    def end(self, reason: str, error: BaseException | None = None) -> None:
        self._end_all([self.sequence], reason, error)

    def __del__(self) -> None:
        # A reply that is dropped has been cancelled.
        sequence = self.sequence
        if sequence is not None and not sequence.is_recorded:
            self._scheduler.worker.soon(partial(self._scheduler.drop, [sequence], "cancelled"))


class TokenEvents(Iterator[TokenEvent], AsyncIterator[TokenEvent]):
    """The events of a reply, which is written as they are asked for."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        # With the reply: another loop goes on where this one is left.
        self._ready = reply.ready_events
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
        while not self._ready and not self._has_ended:
            self._has_ended = await anext(self._reply, None) is None
            self._ready.extend(self._reply.take_events())
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()
