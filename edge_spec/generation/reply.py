"""One reply as it is written."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import perf_counter
from typing import Protocol

from edge_spec.arguments import require_whole
from edge_spec.errors import Cancelled, Closed, PromptError, PromptTooLong, SettingsError
from edge_spec.generation.text_stream import TextStream
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.dry import Breakers
from edge_spec.sampling.grammar import Grammar
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.policy import Policy
from edge_spec.speculation.statistics import Statistics
from edge_spec.tokens.tokenizer import Vocabulary

__all__ = ["Alone", "Context", "Reply"]


class Context(Protocol):
    """Brings the text of a reply into the models, and keeps it inside their context."""

    def begin(self, speculator: Speculator, text: Sequence[int], sampler: Sampler) -> None:
        """Let the models read ``text``, the prompt and what of the reply has been written already."""

    def make_room(self, speculator: Speculator) -> bool:
        """The context is full; take something out of it. False if nothing can go: the reply then ends."""

    def can_shrink(self, speculator: Speculator, n_ctx: int) -> bool:
        """Whether it could go on in a context of ``n_ctx`` tokens, where need be after ``make_room``."""


class Alone:
    """The context of a reply that stands alone."""

    def begin(self, speculator: Speculator, text: Sequence[int], sampler: Sampler) -> None:
        """Read the prompt. Nothing is reused: an equal prompt gets an equal reply, whatever came before."""
        if len(text) >= speculator.model.n_ctx:
            raise PromptTooLong(n_prompt=len(text), n_ctx=speculator.model.n_ctx)
        speculator.begin(text, sampler, reuse=False)

    def make_room(self, speculator: Speculator) -> bool:
        """The prompt stays whole."""
        return False

    def can_shrink(self, speculator: Speculator, n_ctx: int) -> bool:
        """It fits or it does not."""
        return len(speculator.text) < n_ctx


class Reply(Iterator[str]):
    """Writes a reply piece by piece, as far as it is asked to: iterate over it, or call ``read``.

    Args:
        written: tokens of the reply that have been written before; it goes on after them.
        drawn: what ``drawn`` said after them.
        context: how the text gets into the models' context and what happens when that is full.
        before_reply: asked before the prompt is read whether there is a model to read it.
        before_round: asked before every round whether the memory allows to go on.

    Attributes:
        prompt: token ids of the prompt.
        token_ids: token ids written so far, the end token included.
        finish_reason: ``None`` while it goes on, then ``eos`` (the model ended it), ``stop`` (a stop string),
            ``length`` (``max_tokens``), ``context`` (no room), ``memory`` (none left), ``cancelled`` or ``error``.
        context: see above.
        notices: sentences that the reader should see, such as what has been forgotten.
        statistics: what speculation did.

    Raises:
        PromptTooLong, PromptError, SettingsError: before anything is written.
    """

    def __init__(
        self,
        speculator: Speculator,
        policy: Policy,
        vocabulary: Vocabulary,
        prompt: Sequence[int],
        settings: SamplerSettings,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        written: Sequence[int] = (),
        drawn: Mapping[str, float] | None = None,
        context: Context | None = None,
        before_reply: Callable[[Reply], bool] = lambda reply: True,
        before_round: Callable[[Reply], bool] = lambda reply: True,
        grammar: Grammar | None = None,
        breakers: Breakers | None = None,
    ) -> None:
        n_ctx = speculator.model.n_ctx
        if not prompt:
            raise PromptError("the prompt is empty", hint="give some text to continue")
        if context is None and len(prompt) >= n_ctx:
            raise PromptTooLong(n_prompt=len(prompt), n_ctx=n_ctx)
        if max_tokens is not None:
            require_whole("max_tokens", max_tokens, 1, 1 << 62)
        if not all(isinstance(text, str) and text for text in stop):
            raise SettingsError("a stop string is empty or no text", hint="give texts of at least one character")
        self.prompt = tuple(prompt)
        self.settings = settings
        self.token_ids = list(written)
        self.finish_reason: str | None = None
        self.statistics = Statistics(prompt_tokens=len(prompt))
        self._sampler = Sampler(settings, self.prompt, grammar=grammar, breakers=breakers)
        if written:
            self._sampler.resume(written, drawn)
        self._speculator = speculator
        self._policy = policy
        self._vocabulary = vocabulary
        self.context = context or Alone()
        self.notices: list[str] = []
        self._before_reply = before_reply
        self._before_round = before_round
        # Even where the context makes room, a reply that forgets its question does not go on for ever.
        self._most = len(written) + (max_tokens or n_ctx)
        self._stream = TextStream(stop)
        self._before = "".join(self._stream.push(vocabulary.token_bytes(token)) for token in written)
        self._ready: list[str] = []
        self._written: list[str] = []
        self._started = False
        self._cancelled = threading.Event()
        # Held while a piece is written; whoever closes waits for it.
        self._advancing = threading.RLock()
        # The thread whose event loop awaits it, if one does.
        self.awaited_in: int | None = None
        self._advances_in: int | None = None
        self._ending = threading.Lock()
        self._ended = False

    @property
    def text(self) -> str:
        """What has been handed out so far."""
        return "".join(self._written)

    def notice(self, sentence: str) -> None:
        """Tell the reader something."""
        self.notices.append(sentence)

    @property
    def drawn(self) -> dict[str, float]:
        """What the tokens alone do not tell of the draw so far, to go on with it later."""
        return self._sampler.state()

    @property
    def whole(self) -> str:
        """All of the reply, what had been written before included, handed out or not."""
        return self._before + "".join(self._written) + "".join(self._ready)

    def read(self, on_piece: Callable[[str], object] = lambda piece: None) -> str:
        """Write to the end, handing every piece to ``on_piece``; returns the whole text."""
        for piece in self:
            on_piece(piece)
        return self.text

    def __aiter__(self) -> AsyncIterator[str]:
        """The pieces for ``async for``; they are written in a thread. A cancelled task cancels the reply."""
        return _Awaited(self)

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody wants it to stop."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Stop soon, from any thread. What was written stays."""
        self._cancelled.set()
        # Once it has ended, the models work for the next reply.
        with self._ending:
            if self._started and not self._ended:
                self._speculator.cancel()

    def close(self) -> None:
        """Stop, from any thread, and wait until it has stopped; for whoever does not want the rest."""
        self.cancel()
        if self._advances_in == threading.get_ident():
            # Somebody who was told something closes: the round that told comes to its end first.
            return
        with self._advancing:
            self._end("cancelled")

    def __next__(self) -> str:
        with self._advancing:
            self._advances_in = threading.get_ident()
            try:
                while self.finish_reason is None and not self._ready:
                    self._advance()
            except Cancelled:
                self._end("cancelled")
            except BaseException:
                # Before it has begun, it can still begin later.
                if self._started:
                    self._end("error")
                raise
            finally:
                self._advances_in = None
            if not self._ready:
                raise StopIteration
            piece = "".join(self._ready)
            self._ready.clear()
            self._written.append(piece)
            return piece

    def _advance(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled
        if self._started:
            self._round()
        else:
            self._begin()

    def _begin(self) -> None:
        """Read the prompt."""
        start = perf_counter()
        self._speculator.resume()
        self._started = True
        if not self._before_reply(self):
            self._end("memory")
            return
        if self._cancelled.is_set():
            raise Cancelled
        text = (*self.prompt, *self.token_ids)
        self.context.begin(self._speculator, text, self._sampler)
        self.statistics.prefill_s = perf_counter() - start

    def _round(self) -> None:
        """One step of the loop: ask the policy, speculate, learn."""
        start = perf_counter()
        speculator = self._speculator
        if not self._before_round(self):
            self._end("memory")
            return
        if self._cancelled.is_set():
            # It may have been said to a model that has made way for another.
            raise Cancelled
        if len(speculator.text) >= speculator.model.n_ctx and not self.context.make_room(speculator):
            self._end("context")
            return
        done = speculator.step(self._policy, self._most - len(self.token_ids) - 1, self._write)
        self._sampler.commit(speculator.text)
        self.statistics.add(done)
        if self.finish_reason is not None:
            self._end(self.finish_reason)
        spent = done.draft_s + done.verify_s + done.sample_s
        self.statistics.rest_s += perf_counter() - start - spent

    def _write(self, token: int) -> bool:
        """Take a token that the target has picked; says whether the reply ends with it."""
        self.token_ids.append(token)
        if self._vocabulary.ends(token):
            self.finish_reason = "eos"
            return True
        text = self._stream.push(self._vocabulary.token_bytes(token))
        if text:
            self._ready.append(text)
        if self._stream.stopped:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self._most:
            self.finish_reason = "length"
        return self.finish_reason is not None

    def _end(self, reason: str) -> None:
        self.finish_reason = self.finish_reason or reason
        try:
            if self._started and not self._ended and reason != "error":
                # A model that could not be opened again has nothing to forget.
                with suppress(Closed):
                    self._speculator.rest()
        finally:
            with self._ending:
                if self._started and not self._ended:
                    # A cancel that came between two decodes is answered with this.
                    self._speculator.resume()
                self._ended = True
            held = self._stream.finish()
            if held:
                self._ready.append(held)


class _Awaited(AsyncIterator[str]):
    """The pieces of a reply, awaited one by one."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        # A thread of its own: one out of a pool could be waiting for this very reply's turn to end.
        self._thread = ThreadPoolExecutor(1, "edge-spec")

    async def __anext__(self) -> str:
        from asyncio import CancelledError, get_running_loop

        loop = get_running_loop()
        self._reply.awaited_in = threading.get_ident()
        try:
            # The thread must not hold a reply that nobody awaits any more.
            piece = await loop.run_in_executor(self._thread, _next_of, weakref.ref(self._reply))
        except CancelledError:
            self._reply.cancel()
            await loop.run_in_executor(self._thread, self._reply.close)
            raise
        if piece is None:
            self._thread.shutdown(wait=False)
            raise StopAsyncIteration
        return piece


def _next_of(reference: weakref.ref[Reply]) -> str | None:
    reply = reference()
    return next(reply, None) if reply is not None else None
