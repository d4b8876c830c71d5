"""A reply while it is written: its text among those of the target, and what its reader has not taken yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import ref

from edge_spec.generation.context import Context, GuardedReply
from edge_spec.generation.events import EventLog, TokenEvent
from edge_spec.generation.reader import Reader
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.tools.answers import AnswerParser
from edge_spec.generation.tools.calls import CallReading, ToolCall
from edge_spec.generation.writer import TokenWriter
from edge_spec.sampling.grammar import Node
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.statistics import Statistics
from edge_spec.tokens.tokenizer import Vocabulary

__all__ = ["Asking", "Outcome", "Recorder", "Refused", "Writing"]


class Recorder(Protocol):
    """Keeps what becomes of a reply: a conversation."""

    def notice(self, sentence: str) -> None:
        """The reader has been told something."""

    def ended(self, reply: Writing) -> None:
        """The reply has ended, for whatever reason."""


class Asking(GuardedReply, Protocol):
    """The reply that is written."""

    @property
    def is_cancelled(self) -> bool:
        """Whether it has to stop."""

    @property
    def group(self) -> object | None:
        """Those that were asked for together with it."""

    def is_left_by(self, reader: Reader, patience_s: float) -> bool:
        """Return whether nobody has read it for so long, or nobody could while ``reader`` waits."""

    def close(self) -> None:
        """End it."""

    def end_unread(self) -> None:
        """End it if it has to stop and nobody waits for a piece of it."""


class Whole(NamedTuple):
    """A reply as the last whole round has left it, whose reader is behind.

    Attributes:
        n_tokens: tokens written, with those that had been written before.
        finish_reason: see ``Reply``.
        statistics: what speculation did.
        drawn: what the tokens do not tell of the draw.
        n_text: tokens of its text in the target.
        accepted: what its sampler remembers of them.
        events: that are in no outcome.
    """

    n_tokens: int
    finish_reason: str | None
    statistics: Statistics
    drawn: Mapping[str, float]
    n_text: int
    accepted: Node
    events: Sequence[TokenEvent]


class Outcome(NamedTuple):
    """What a round has brought.

    Attributes:
        piece: text that has become certain.
        events: of its tokens.
        error: why the reply has ended with it, if that was an error.
        whole: the reply with it; None if its reader was there, so that it is no further now.
    """

    piece: str
    events: Sequence[TokenEvent]
    error: BaseException | None = None
    whole: Whole | None = None


class Writing:
    """What is written of a reply.

    It may be ahead of its reader, since whoever reads one reply advances all. What the reader has not taken is not part
    of the reply yet: ``state`` is how far the reader is, and ``cut`` forgets the rest.

    Attributes:
        request: what was asked for.
        writer: makes text of tokens.
        context: keeps the text inside the model's context.
        next_limit: says how many tokens to draft.
        place: where the target has it; None before it has been admitted, and while it is put back.
        put_back: its tokens, while it is put back.
        prompt_progress: how many tokens of the prompt have been read, and how many have to be.
        untold: such pairs that its reader has not been told.
        is_reading: its prompt is being read.
        arrival: its place in the order of arrival, from 1; 0 before.
        is_over: nothing is written of it any more.
    """

    def __init__(
        self,
        asking: Asking,
        request: ReplyRequest,
        vocabulary: Vocabulary,
        n_ctx: int,
        next_limit: Callable[[], int],
        context: Context,
        recorder: Recorder | None,
    ) -> None:
        self.request = request
        self.prompt = tuple(request.prompt)
        self.writer = TokenWriter(vocabulary, request, n_ctx)
        self.context = context
        self.next_limit = next_limit
        self.place: Speculator | None = None
        self.put_back: list[int] | None = None
        self.prompt_progress = (0, len(request.prompt))
        self.untold: deque[tuple[int, int]] = deque()
        self.is_over = False
        self.is_reading = False
        self.arrival = 0
        self._outcomes: deque[Outcome] = deque()
        # Weak: a reply that nobody refers to any more has to go.
        self._asking = ref(asking)
        self._recorder = recorder
        self.is_recorded = False
        self.has_begun = False
        # What has been taken, and how many pieces of it have been handed out: numbers, which no error cuts in half.
        self._pieces: list[str] = []
        self._n_taken = self._n_handed_out = 0
        self._state: Whole | None = None
        # With what was taken last: made for that, and good until something else is written.
        self._reached: Whole | None = None
        self._whole: Whole | None = None
        # Of a reply that has ended where its reader was, behind what its sampler has drawn.
        self._drawn: Mapping[str, float] | None = None
        self._log: EventLog | None = None
        self._taken: list[TokenEvent] = []

    @property
    def asking(self) -> Asking | None:
        """The reply; None if nobody refers to it any more."""
        return self._asking()

    @property
    def is_cancelled(self) -> bool:
        """Whether nothing more of it is wanted."""
        reply = self._asking()
        return reply is None or reply.is_cancelled

    @property
    def owner(self) -> object:
        """Whose text it is: a conversation, or its own."""
        return self.context.session or self

    # --- as far as its reader is

    @property
    def token_ids(self) -> list[int]:
        """Token ids, the end token included."""
        state = self._state
        return self.writer.token_ids if state is None else self.writer.token_ids[: state.n_tokens]

    @property
    def finish_reason(self) -> str | None:
        """See ``Reply``."""
        return self.writer.finish_reason if self._state is None else self._state.finish_reason

    @property
    def statistics(self) -> Statistics:
        """What speculation did."""
        return self.writer.statistics if self._state is None else self._state.statistics

    @property
    def drawn(self) -> Mapping[str, float]:
        """What the tokens do not tell of the draw."""
        if self._state is not None:
            return self._state.drawn
        return self.writer.sampler.state() if self._drawn is None else self._drawn

    @property
    def text(self) -> str:
        """What has been handed out."""
        return "".join(self._pieces[: self._n_handed_out])

    @property
    def held(self) -> str:
        """The text that has been taken and not handed out."""
        return "".join(self._pieces[self._n_handed_out :])

    @property
    def content(self) -> str:
        """All of it, with what the prompt and an earlier reply have written of it, and what is not handed out yet."""
        return "".join((self.request.opening, self.writer.text_before, *self._pieces))

    @property
    def pieces(self) -> Sequence[str]:
        """What has been handed out, as it came."""
        return [piece for piece in self._pieces[: self._n_handed_out] if piece]

    def parser(self, *, again: bool) -> AnswerParser:
        """Return what takes apart the pieces that are not handed out yet, or all of them ``again``."""
        before = () if again else self._pieces[: self._n_handed_out]
        return self.request.reading.parser("".join((self.request.opening, self.writer.text_before, *before)))

    @property
    def parsed(self) -> tuple[dict[str, Any], tuple[ToolCall, ...]]:
        """The answer as a message without its calls, and these."""
        request, is_cut = self.request, self.finish_reason not in ("eos", "stop")
        return request.reading.message(self.content, is_cut=is_cut, call_id=request.call_id)

    @property
    def has_news(self) -> bool:
        """Whether there is an outcome that the reader has not taken."""
        return bool(self._outcomes)

    @property
    def is_complete(self) -> bool:
        """Whether it has ended, and its reader has taken all."""
        return self.is_over and not self._outcomes

    def take(self) -> Outcome:
        """Take the next outcome."""
        outcome = self._outcomes[0]
        whole = outcome.whole
        is_behind = whole is not None and (len(self._outcomes) > 1 or whole.n_tokens < len(self.writer.token_ids))
        # Before the last line an interruption has taken nothing.
        self._pieces[self._n_taken :] = [outcome.piece]
        self._state, self._reached = (whole, None) if whole is not None and is_behind else (None, whole)
        taken = [*self._taken, *outcome.events]
        self._taken, self._n_taken, _ = taken, self._n_taken + 1, self._outcomes.popleft()
        return outcome

    def hand_out(self) -> str:
        """Hand out the text that has been taken; empty if there is none."""
        if self._n_handed_out == len(self._pieces):
            return ""
        piece, self._n_handed_out = self.held, len(self._pieces)
        return piece

    def tell_events(self) -> None:
        """Collect events from now on."""
        if self._log is None:
            self._log = self.writer.event_log()

    @property
    def has_events(self) -> bool:
        """Whether there are events of what the reader has taken."""
        return bool(self._taken)

    @property
    def has_tokens(self) -> bool:
        """Whether the reader has taken any token."""
        return len(self.token_ids) > len(self.request.written)

    def take_events(self) -> list[TokenEvent]:
        """Return the events of what the reader has taken, once."""
        taken, self._taken = self._taken, []
        return taken

    def record(self) -> None:
        """It has ended, and its reader knows: let the conversation keep it, once."""
        if not self.is_recorded:
            try:
                if self._recorder is not None:
                    self._recorder.ended(self)
            finally:
                self.is_recorded = True

    # --- for what writes it

    @property
    def n_ahead(self) -> int:
        """How many tokens it is ahead of its reader."""
        return len(self.writer.token_ids) - self._state.n_tokens if self._state is not None else 0

    def brought(self, *, is_read: bool, error: BaseException | None = None) -> None:
        """A round is over: its text, or its end, is an outcome.

        Args:
            is_read: whether its reader takes it before anything else is written.
        """
        writer = self.writer
        if error is not None:
            writer.finish_reason = "error"
        is_over = writer.finish_reason is not None
        if is_over:
            writer.flush()
        is_there = is_read and self._state is None
        if not (writer.ready or is_over):
            self._whole = None if is_there else self._present(self._log.ready if self._log is not None else ())
            return
        whole = None if is_there else self._present()
        events = self._log.ready if self._log is not None else ()
        self._outcomes.append(Outcome("".join(writer.ready), events, error, whole))
        if self._log is not None:
            self._log.take()
        writer.ready.clear()
        self.is_over = is_over

    def run_ahead(self) -> None:
        """Somebody else's reader is about to advance it: remember how far its own reader is."""
        if self._state is None:
            reached, self._reached = self._reached, None
            is_there = reached is not None and reached.n_tokens == len(self.writer.token_ids)
            self._taken += self._log.take() if self._log is not None else []
            self._state = self._whole = reached if reached is not None and is_there else self._present()

    def go_back(self) -> int | None:
        """A round was interrupted: be what the last whole one has left.

        Returns:
            The tokens that its text had then; None if its reader is there, who knows of the interruption.
        """
        found = [*(outcome.whole for outcome in reversed(self._outcomes)), self._whole]
        known = [each for each in found if each is not None]
        if self._state is None or not known:
            return None
        last = max(known, key=lambda whole: whole.n_tokens)
        self.writer.cut(last.n_tokens)
        self.writer.finish_reason, self.writer.statistics = last.finish_reason, last.statistics.copy()
        self.writer.sampler.go_back(last.accepted)
        if self._log is not None:
            self._log.go_back(last.events)
        self.is_over = last.finish_reason is not None
        return last.n_text

    def reads(self, done: int, total: int) -> None:
        """So many tokens of its prompt have been read, and so many have to be."""
        self.prompt_progress = done, total
        self.untold.append(self.prompt_progress)

    def has_read(self, n: int) -> None:
        """``n`` further tokens of its prompt have been read."""
        done, total = self.prompt_progress
        self.reads(done + n, max(total, done + n))

    def end(self, reason: str) -> int:
        """End it where its reader is; returns how many tokens it was ahead."""
        n_ahead = self.n_ahead
        if self._state is not None:
            self.writer.cut(self._state.n_tokens)
            self.writer.statistics = self._state.statistics
            self._drawn = self._state.drawn
            self._state = None
            if self._log is not None:
                self._log.take()
        self._outcomes.clear()
        self.writer.finish_reason = reason
        self.brought(is_read=True)
        return n_ahead

    def _present(self, events: Sequence[TokenEvent] = ()) -> Whole:
        writer, sampler = self.writer, self.writer.sampler
        return Whole(
            len(writer.token_ids),
            writer.finish_reason,
            writer.statistics.copy(),
            sampler.state(),
            len(self.place.text) if self.place is not None else 0,
            sampler.accepted,
            events,
        )


class Refused:
    """What is written of a reply that was refused: nothing.

    Args:
        prompt: token ids.
    """

    text = content = held = ""
    parsed: tuple[dict[str, Any], tuple[ToolCall, ...]] = ({"role": "assistant", "content": ""}, ())
    finish_reason = "error"
    is_recorded = is_complete = True
    has_begun = has_events = has_tokens = False

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self.token_ids: list[int] = []
        self.statistics = Statistics(prompt_tokens=len(prompt))
        self.drawn: Mapping[str, float] = {}
        self.prompt_progress = (0, len(prompt))

    pieces: Sequence[str] = ()

    def parser(self, *, again: bool) -> AnswerParser:
        """Return what has nothing to take apart."""
        return CallReading().parser()

    def hand_out(self) -> str:
        """Hand out nothing."""
        return ""

    def tell_events(self) -> None:
        """Collect nothing."""

    def take_events(self) -> list[TokenEvent]:
        """Return nothing."""
        return []
