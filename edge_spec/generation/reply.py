"""A reply: what users iterate over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from time import perf_counter
from typing import Protocol

from edge_spec.errors import Cancelled, Closed
from edge_spec.generation.context import Context, ModelAccess
from edge_spec.generation.events import EventLog
from edge_spec.generation.reader import Reader
from edge_spec.generation.reading import ReadableReply
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.writer import Writer
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.statistics import Statistics

__all__ = ["Recorder", "Reply"]


class Recorder(Protocol):
    """Keeps what becomes of a reply: a conversation."""

    def notice(self, sentence: str) -> None:
        """The reader has been told something."""

    def ended(self, reply: Reply) -> None:
        """The reply has ended, for whatever reason; it still has the models."""


class Reply(ReadableReply):
    """Writes a reply piece by piece, when it is asked for the next one: iterate over it, or call ``read``.

    Also for ``async for``, and ``await`` for the whole text. A reply that is not read to its end keeps others waiting:
    cancel or close it, use it as a context manager, or drop it.

    Attributes:
        prompt: token ids of the prompt.
        settings: of the sampler.
        notices: sentences that the reader should see, such as what the model no longer sees.
        prompt_progress: how many tokens of the prompt have been read, and how many have to be.
        reader: who reads it.

    Raises:
        PromptTooLong: the context has no room for it.
    """

    # Whatever fails while it is built, there is nothing to end.
    _is_recorded = True
    _turn: ExitStack | None = None

    def __init__(
        self,
        access: ModelAccess,
        request: ReplyRequest,
        next_limit: Callable[[], int],
        *,
        context: Context | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._context = context or Context()
        self._context.require_room(len(request.prompt) + len(request.written), access.speculator.model.n_ctx)
        super().__init__(request.options.timeout)
        self.prompt = tuple(request.prompt)
        self.settings: SamplerSettings = request.settings
        self.notices: list[str] = []
        self._access = access
        self._recorder = recorder
        self._request = request
        self.prompt_progress = (0, len(request.prompt))
        self._writer = Writer(access.speculator, access.vocabulary, request, next_limit, self._context)
        self._handed_out: list[str] = []
        self._started = False
        self._ending = threading.Lock()
        self._ended = False
        self._is_recorded = False

    # --- what has been written

    @property
    def text(self) -> str:
        """What has been handed out so far."""
        return "".join(self._handed_out)

    @property
    def content(self) -> str:
        """All of it: with what the prompt and an earlier reply have written of it, and what is not handed out yet."""
        return "".join((self._request.opening, self._writer.text_before, *self._handed_out, *self._writer.ready))

    @property
    def token_ids(self) -> list[int]:
        """Token ids written so far, the end token included."""
        return self._writer.token_ids

    @property
    def finish_reason(self) -> str | None:
        """``None`` while it is written, then ``eos`` (the model ended it), ``stop`` (a stop string), ``length``
        (``max_tokens``), ``context`` (no room), ``memory`` (none left), ``timeout``, ``cancelled`` or ``error``."""
        return self._writer.finish_reason

    @property
    def statistics(self) -> Statistics:
        """What speculation did."""
        return self._writer.statistics

    @property
    def n_reused(self) -> int:
        """How many tokens of the prompt were not read, since the models' caches held them."""
        return self._context.n_reused

    @property
    def drawn(self) -> dict[str, float]:
        """What the tokens do not tell of the draw so far; needed to continue it later."""
        return self._writer.sampler.state()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and its conversation holds it."""
        return self._is_recorded

    def __repr__(self) -> str:
        state = self.finish_reason or ("being written" if self._started else "not begun")
        return f"<Reply: {len(self.token_ids)} tokens, {state}>"

    # --- reading it

    def next_piece(self, reader: Reader) -> str | None:
        """Write the next piece for a reader; None at the end."""
        with self._advanced_by(reader):
            try:
                while self.finish_reason is None and not self._writer.ready:
                    self._advance()
            except Cancelled:
                self._end_cancelled()
            except BaseException:
                # Before it has begun, it can still begin later.
                if self._started:
                    self._end("error")
                raise
            if not self._writer.ready:
                return None
            piece = "".join(self._writer.ready)
            self._writer.ready.clear()
            self._handed_out.append(piece)
            return piece

    def event_log(self) -> EventLog:
        return self._writer.event_log()

    # --- ending it

    def ask_to_stop(self) -> None:
        self._cancelled.set()
        # Once it has ended, the models work for the next reply.
        with self._ending:
            if self._started and not self._ended:
                self._access.speculator.cancel()
        self._access.lock.wake()

    def __del__(self) -> None:
        # A reply that is dropped has been cancelled, and must not keep the models from the next one.
        if not self._is_recorded:
            self._end("cancelled")

    # --- what a memory guard sees

    @property
    def owner(self) -> object:
        """The conversation that it belongs to, or itself."""
        return self._context.session or self

    def notice(self, sentence: str) -> None:
        """Tell the reader something."""
        self.notices.append(sentence)
        self._request.options.on_notice(sentence)
        if self._recorder is not None:
            self._recorder.notice(sentence)

    def can_shrink(self, n_ctx: int) -> bool:
        """Return whether it could continue in a context of ``n_ctx`` tokens."""
        return self._context.can_shrink(self._access.speculator, n_ctx)

    # --- writing it

    def _advance(self) -> None:
        self._check_cancelled()
        if self._started:
            self._round()
        else:
            self._begin()

    def _begin(self) -> None:
        """Wait for a turn, and read the prompt."""
        access = self._access
        self._turn = access.lock.turn(self)
        self._started = True
        start = perf_counter()
        access.speculator.resume()
        if not access.guard.before_reply(self):
            self._end("memory")
            return
        self._check_cancelled()
        self._writer.read_prompt(access.sessions, self.notice, self._has_read)
        self.statistics.prefill_s = perf_counter() - start

    def _round(self) -> None:
        start = perf_counter()
        if not self._access.guard.before_round(self):
            self._end("memory")
            return
        # A target that another one has replaced meanwhile does not tell of a cancel.
        self._check_cancelled()
        done = self._writer.round(self.notice)
        if self.finish_reason is not None:
            self._end(self.finish_reason)
        if done is not None:
            spent = done.draft_s + done.verify_s + done.sample_s
            self.statistics.rest_s += perf_counter() - start - spent

    def _has_read(self, done: int, total: int) -> None:
        self.prompt_progress = done, total
        self._request.options.on_progress("reading", done, total)
        self._check_cancelled()

    def _end(self, reason: str) -> None:
        self._writer.finish_reason = self._writer.finish_reason or reason
        with ExitStack() as always:
            # Last things first. Whatever fails, the conversation holds the reply and the next one gets its turn.
            always.callback(self._end_turn)
            always.callback(self._record)
            always.callback(self._writer.flush)
            always.callback(self._answer_cancel)
            if self._started and not self._ended and reason != "error":
                # A target that could not be opened again has nothing to drop.
                with suppress(Closed):
                    self._access.speculator.end_reply()

    def _answer_cancel(self) -> None:
        with self._ending:
            if self._started and not self._ended:
                # A cancel that came between two decodes ends here, not in the next reply.
                self._access.speculator.resume()
            self._ended = True

    def _record(self) -> None:
        if not self._is_recorded:
            if self._recorder is not None:
                self._recorder.ended(self)
            self._is_recorded = True

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.close()
