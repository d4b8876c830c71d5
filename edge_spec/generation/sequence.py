"""A text while it is written: its tokens, and a log of what its reader has not taken yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Tokens
from math import inf
from threading import RLock
from time import monotonic
from typing import Any, NamedTuple, Protocol

from edge_spec.errors import GrammarDeadEnd, PromptError, StateError
from edge_spec.generation.context import Context
from edge_spec.generation.events import EventLog, ObservedSampler, TokenEvent
from edge_spec.generation.reader import Reader
from edge_spec.generation.request import Deadline, ReplyRequest
from edge_spec.generation.text_stream import TextStream
from edge_spec.generation.tools.answers import AnswerParser
from edge_spec.generation.tools.calls import ToolCall
from edge_spec.sampling import Sampler
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.round import Round
from edge_spec.speculation.statistics import Statistics
from edge_spec.tokens.tokenizer import Vocabulary

__all__ = ["OF_ONE_TEXT", "Claim", "Recorder", "Sequence", "Step"]

OF_ONE_TEXT = (GrammarDeadEnd, PromptError, StateError)
"""Errors that end one text and leave the others alone."""


class Recorder(Protocol):
    """Keeps what becomes of a reply: a conversation."""

    def notice(self, sentence: str) -> None:
        """The reader has been told something."""

    def ended(self, sequence: Sequence) -> None:
        """The reply has ended, for whatever reason."""


class Claim:
    """What somebody wants of a reply, or of several: until when, and who reads.

    Args:
        timeout: seconds after the first piece is asked for after which it ends; None for no limit.
        parent: of those that were asked for together; it ends all of them.

    Attributes:
        reader: who reads.
        is_read: somebody waits for a piece now.
        takes_all: somebody reads it to its end, several steps at a time: what is written counts as read.
        is_cancelled: nobody wants any more of it.
    """

    def __init__(self, timeout: float | None, parent: Claim | None = None) -> None:
        self.reader = Reader.here()
        self.is_read = self.is_cancelled = False
        self.takes_all = False
        self._parent = parent
        self._deadline = Deadline(timeout)
        self._unread_since = monotonic()

    @property
    def has_to_stop(self) -> bool:
        """Whether it was cancelled, or its time is up."""
        return self.is_cancelled or self._deadline.is_over or (self._parent is not None and self._parent.has_to_stop)

    @property
    def reason(self) -> str:
        """Why it has to stop; see ``Reply.finish_reason``."""
        is_cancelled = self.is_cancelled or (self._parent is not None and self._parent.is_cancelled)
        return "cancelled" if is_cancelled else "timeout"

    @property
    def group(self) -> Claim | None:
        """The claim that replies share which were asked for together, or None."""
        return self._parent

    def begin_reading(self, reader: Reader) -> None:
        """Somebody waits for a piece."""
        self.reader, self.is_read, self._unread_since = reader, True, monotonic()
        self._deadline.start()

    def end_reading(self) -> None:
        """Nobody waits for a piece any more."""
        self._unread_since, self.is_read = monotonic(), False

    def waited(self) -> None:
        """Somebody has waited for a piece until now."""
        (self._parent or self)._unread_since = monotonic()

    def is_left(self, readers: Tokens[Reader], patience_s: float) -> bool:
        """Return whether nobody has read it for so long, or whoever does cannot go on while ``readers`` wait."""
        own = self._parent or self
        if any(reader.blocks(own.reader) for reader in readers):
            return True
        return monotonic() - own._unread_since >= patience_s


class Step(NamedTuple):
    """What a step of the scheduler brought to a sequence.

    Attributes:
        n_tokens: tokens of the reply with it.
        piece: text that has become certain.
        events: of its tokens.
        drawn: sampler state that tokens do not determine, such as mirostat's mu.
        done: what was drafted and verified; None if nothing was written.
        drafter: the name of what drafted, if anything did.
        is_shared: other texts were written as well.
        prefill_s, rest_s: seconds of reading its prompt, and between the parts of the round.
        progress: how many tokens of the prompt have been read, and how many have to be.
        notice: a sentence that the reader should see.
        finish_reason, error: why it has ended.
    """

    n_tokens: int
    piece: str = ""
    events: Tokens[TokenEvent] = ()
    drawn: Mapping[str, float] = {}
    done: Round | None = None
    drafter: str = ""
    is_shared: bool = False
    prefill_s: float = 0.0
    rest_s: float = 0.0
    progress: tuple[int, int] | None = None
    notice: str | None = None
    finish_reason: str | None = None
    error: BaseException | None = None


class Sequence:
    """A text while it is wanted.

    The scheduler appends steps to a log, and the reader takes them: what it has not taken is not part of the reply yet.
    Attributes and methods are for the scheduler, unless they are below *for its reader*.

    Args:
        n_ctx: cells of a text; a reply is no longer than that, even where the context makes room.

    Attributes:
        request: what was asked for.
        claim: what somebody wants of it.
        context: keeps the text inside the model's context.
        next_limit: says how many tokens to draft.
        sampler: draws its tokens.
        max_tokens: the most tokens of the reply, with those that had been written before.
        slot: its slot of the target; None while it waits.
        preempted: its tokens, prompt and reply, while it waits after it was written.
        arrival: its number in the order of arrival, from 1; 0 before.
        has_begun: anything has been read or written for it.
        is_reading: its prompt is being read.
        is_over: nothing is written of it any more.
        stop_reason: why not.
    """

    def __init__(
        self,
        request: ReplyRequest,
        vocabulary: Vocabulary,
        n_ctx: int,
        claim: Claim,
        next_limit: Callable[[], int],
        context: Context,
        recorder: Recorder | None = None,
    ) -> None:
        self.request = request
        self.prompt = tuple(request.prompt)
        self.claim = claim
        self.context = context
        self.next_limit = next_limit
        self.sampler = _sampler(request)
        self.slot: Slot | None = None
        self.preempted: list[int] | None = None
        self.arrival = 0
        self.has_begun = self.is_reading = self.is_over = False
        self.stop_reason: str | None = None
        self.max_tokens = len(request.written) + (request.options.max_tokens or n_ctx)
        self._vocabulary = vocabulary
        self._tokens = list(request.written)
        self._stream = TextStream(request.options.stop)
        self.text_before = "".join(self._stream.push(vocabulary.token_bytes(token)) for token in request.written)
        self._ready: list[str] = []
        self._progress = (0, len(request.prompt))
        self._events: EventLog | None = None
        # Guards the log between the scheduler and whoever reads.
        self._lock = RLock()
        self._log: deque[Step] = deque(Step(0, notice=sentence) for sentence in request.notices)
        self._n_notices = len(self._log)
        self._recorder = recorder
        # As far as the reader is.
        self.is_recorded = False
        self.statistics = Statistics(prompt_tokens=len(request.prompt))
        self.finish_reason: str | None = None
        self.error: BaseException | None = None
        self.prompt_progress = self._progress
        self.drawn: Mapping[str, float] = self.sampler.state()
        self._n_read = len(request.written)
        self._pieces: list[str] = []
        self._n_handed_out = 0
        self._taken: list[TokenEvent] = []

    @property
    def owner(self) -> object:
        """Whose text it is: a conversation, or its own."""
        return self.context.session or self

    @property
    def tokens(self) -> Tokens[int]:
        """Token ids of prompt and reply."""
        return (*self.prompt, *self._tokens)

    @property
    def n_left(self) -> int:
        """The most tokens that may still be written."""
        return self.max_tokens - len(self._tokens)

    @property
    def n_ahead(self) -> int:
        """Number of tokens that its reader has not taken."""
        return len(self._tokens) - self._n_read

    # --- writing it

    def write(self, step: Callable[[Callable[[int], bool]], Round], drafter: Drafter) -> Round:
        """Let a round take tokens; ``wrote`` comes next.

        If it fails for a reason that is not of this text, it has taken none.

        Args:
            step: does the round; called with ``take``.
            drafter: what has drafted.
        """
        n_tokens = len(self._tokens)
        try:
            done = step(self._take)
        except OF_ONE_TEXT:
            raise
        except BaseException:
            self._cut(n_tokens)
            raise
        if self._events is not None:
            self._events.round_over(done, drafter.last_name if done.drafted else "")
        return done

    def _take(self, token: int) -> bool:
        """Take a token that the target has picked; says whether the reply ends with it."""
        self._tokens.append(token)
        ends = self._vocabulary.ends(token)
        text = "" if ends else self._stream.push(self._vocabulary.token_bytes(token))
        if self._events is not None:
            self._events.took(text)
        if ends:
            self.stop_reason = "eos"
            return True
        if text:
            self._ready.append(text)
        if self._stream.stopped:
            self.stop_reason = "stop"
        elif len(self._tokens) >= self.max_tokens:
            self.stop_reason = "length"
        return self.stop_reason is not None

    def wrote(self, done: Round, drafter: str, rest_s: float, *, is_shared: bool) -> None:
        """A round is over."""
        self._append(
            done=done, drafter=drafter, rest_s=rest_s, is_shared=is_shared, drawn=self.sampler.state(), is_written=True
        )

    def finish(self, reason: str | None = None, error: BaseException | None = None) -> None:
        """It has ended by itself, as ``stop_reason`` says, or for another reason."""
        self.stop_reason = "error" if error is not None else reason or self.stop_reason
        self._append(error=error, drawn=self.sampler.state(), is_written=True)

    def fail(self, error: BaseException) -> None:
        """Tell its reader an error that came after its end."""
        self._append(error=error)

    def notice(self, sentence: str, *, departs: bool = False) -> None:
        """Tell the reader something; see ``Notice``."""
        if departs:
            self.context.departs = True
        self._append(notice=sentence)

    def has_to_read(self, n: int) -> None:
        """So many tokens of its prompt have to be read."""
        self._progress = 0, n
        self._append(progress=self._progress)

    def has_read(self, n: int, seconds: float) -> None:
        """``n`` further tokens of its prompt have been read."""
        done, total = self._progress
        self._progress = done + n, max(total, done + n)
        self._append(progress=self._progress, prefill_s=seconds)

    def can_shrink(self, n_ctx: int) -> bool:
        """Return whether it could continue in a context of ``n_ctx`` tokens."""
        return self.slot is not None and self.context.can_shrink(self.slot, n_ctx)

    def _append(self, *, is_written: bool = False, **brought: Any) -> None:
        piece, events = "", list[TokenEvent]()
        if is_written:
            if self.stop_reason is not None and not self.is_over:
                self._flush()
            piece = "".join(self._ready)
            self._ready.clear()
            events = self._events.take() if self._events is not None else []
            brought["finish_reason"] = self.stop_reason
        with self._lock:
            self._log.append(Step(len(self._tokens) if is_written else 0, piece, events, **brought))
            self._n_notices += "notice" in brought
            self.is_over = self.is_over or brought.get("finish_reason") is not None

    def _flush(self) -> None:
        """Release the text that might have become a stop string."""
        held = self._stream.finish()
        if held:
            self._ready.append(held)
        if self._events is not None:
            self._events.ended(held)

    def _cut(self, n_tokens: int) -> None:
        """Forget all tokens but the first ones, and the pieces that are in no step."""
        del self._tokens[n_tokens:]
        self._ready.clear()
        self.stop_reason = None
        self._stream = TextStream(self.request.options.stop)
        for token in self._tokens:
            self._stream.push(self._vocabulary.token_bytes(token))
        if self._events is not None:
            self._events.drop_taken()

    def end(self, reason: str, error: BaseException | None = None) -> int:
        """End it where its reader is, unless it has ended there by itself; returns how many tokens it was ahead."""
        with self._lock:
            if (self.claim.group or self.claim).takes_all:
                self._take_written()
            n_ahead = self.n_ahead
            if self.is_over and not n_ahead:
                while self.take() is not None:
                    pass
                return 0
            # A sentence that is not of what was written is told all the same.
            kept = [step for step in self._log if step.notice is not None]
            if n_ahead or self._log:
                self._cut(self._n_read)
            self._log.clear()
            self._log.extend(kept)
            self.stop_reason = reason
            self._flush()
            piece = "".join(self._ready)
            self._ready.clear()
            events = self._events.take() if self._events is not None else []
            self._fold(Step(self._n_read, piece, events, finish_reason=reason, error=error))
            self.is_over = True
        return n_ahead

    def _take_written(self) -> None:
        """Take all but what the reader has to be told."""
        steps = [*self._log]
        self._log.clear()
        for step in steps:
            if step.notice is None:
                self._fold(step)
            else:
                self._log.append(step)

    def refuse(self, error: BaseException) -> None:
        """End it before anything of it is written."""
        self.stop_reason = self.finish_reason = "error"
        self.error, self.is_over, self.is_recorded = error, True, True
        self._log.clear()

    def record(self) -> None:
        """Let the conversation keep it, once: it has ended, and its reader knows or is gone."""
        with self._lock:
            if not self.is_recorded:
                try:
                    if self._recorder is not None:
                        self._recorder.ended(self)
                finally:
                    self.is_recorded = True

    # --- for its reader

    @property
    def token_ids(self) -> list[int]:
        """Token ids of the reply, the end token included."""
        return self._tokens[: self._n_read]

    @property
    def n_news(self) -> float:
        """Number of steps to take; infinite if its reader has to know at once: it has ended, or there is a notice."""
        return inf if self.is_over or self._n_notices else len(self._log)

    @property
    def is_complete(self) -> bool:
        """Whether it has ended, and its reader has taken all."""
        return self.is_over and not self._log

    def take(self) -> Step | None:
        """Take the next step; None if there is none."""
        with self._lock:
            if not self._log:
                return None
            step = self._log.popleft()
            self._n_notices -= step.notice is not None
            self._fold(step)
            return step

    def tell(self, sentence: str) -> None:
        """The reader has been told something: let the conversation know."""
        if self._recorder is not None:
            self._recorder.notice(sentence)

    def _fold(self, step: Step) -> None:
        """Add a step to what the reader knows."""
        if step.piece:
            self._pieces.append(step.piece)
        self._taken += step.events
        if step.done is not None:
            self.statistics.add(step.done, step.drafter)
            self.statistics.shared += step.is_shared
            self.drawn = step.drawn
        self.statistics.prefill_s += step.prefill_s
        self.statistics.rest_s += step.rest_s
        self._n_read = max(self._n_read, step.n_tokens)
        self.prompt_progress = step.progress or self.prompt_progress
        if step.finish_reason is not None:
            self.finish_reason, self.error = step.finish_reason, step.error

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
        """The whole answer: what the prompt and an earlier reply wrote of it, and what is not handed out yet."""
        return "".join((self.request.opening, self.text_before, *self._pieces))

    @property
    def pieces(self) -> Tokens[str]:
        """What has been handed out, as it came."""
        return self._pieces[: self._n_handed_out]

    def parser(self, *, again: bool) -> AnswerParser:
        """Return what takes apart the pieces that are not handed out yet, or all of them ``again``."""
        before = () if again else self._pieces[: self._n_handed_out]
        return self.request.reading.parser("".join((self.request.opening, self.text_before, *before)))

    @property
    def is_cut(self) -> bool:
        """Whether its reader has an answer that neither the model nor a stop string has ended."""
        return self.finish_reason not in ("eos", "stop")

    @property
    def parsed(self) -> tuple[dict[str, Any], tuple[ToolCall, ...]]:
        """The answer as a message without its calls, and these."""
        request = self.request
        return request.reading.message(self.content, is_cut=self.is_cut, call_id=request.call_id)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that has ended it."""
        return self._stream.stopped_by if self.finish_reason == "stop" else None

    def hand_out(self) -> str:
        """Hand out the text that has been taken; empty if there is none."""
        with self._lock:
            if self._n_handed_out == len(self._pieces):
                return ""
            piece, self._n_handed_out = self.held, len(self._pieces)
            return piece

    def tell_events(self) -> None:
        """Collect events from the next round on; while none is computed."""
        if self._events is None:
            self._events = EventLog(self.sampler)

    @property
    def tells_events(self) -> bool:
        """Whether it collects events."""
        return self._events is not None

    @property
    def has_events(self) -> bool:
        """Whether there are events of what the reader has taken."""
        return bool(self._taken)

    @property
    def has_tokens(self) -> bool:
        """Whether the reader has taken any token."""
        return self._n_read > len(self.request.written)

    def take_events(self) -> list[TokenEvent]:
        """Return the events of what the reader has taken, once."""
        with self._lock:
            taken, self._taken = self._taken, []
            return taken


def _sampler(request: ReplyRequest) -> Sampler:
    sampler = (
        Sampler(request.settings, request.prompt, grammar=request.grammar, breakers=request.breakers)
        if request.options.logprobs is None
        else ObservedSampler(request, request.options.logprobs)
    )
    if request.written:
        sampler.resume(request.written, request.drawn)
    return sampler
