"""Writes the text of a reply, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge_spec.errors import GrammarDeadEnd, PromptError, StateError
from edge_spec.generation.events import EventLog, ObservedSampler
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.text_stream import TextStream
from edge_spec.sampling import Sampler
from edge_spec.speculation.round import Round
from edge_spec.speculation.statistics import Statistics
from edge_spec.tokens.tokenizer import Vocabulary

__all__ = ["OF_ONE_TEXT", "TokenWriter"]

OF_ONE_TEXT = (GrammarDeadEnd, PromptError, StateError)
"""Errors that end one text and leave the others alone."""


class TokenWriter:
    """Makes a reply of the tokens that a model's rows are drawn to, whatever computes the rows.

    Attributes:
        token_ids: token ids of the reply so far, the end token included.
        finish_reason: why the reply has ended, see ``Reply``; None before.
        statistics: what speculation did.
        ready: pieces of text that nobody has taken yet.
        text_before: the text of what had been written before.
        sampler: what draws the tokens.
        events: called with each token; None for no events.
        max_tokens: the most tokens of the reply, with those that had been written before.
    """

    def __init__(self, vocabulary: Vocabulary, request: ReplyRequest, n_ctx: int) -> None:
        self.token_ids = list(request.written)
        self.finish_reason: str | None = None
        self.statistics = Statistics(prompt_tokens=len(request.prompt))
        self.ready: list[str] = []
        self.events: EventLog | None = None
        self.sampler = (
            Sampler(request.settings, request.prompt, grammar=request.grammar, breakers=request.breakers)
            if request.options.logprobs is None
            else ObservedSampler(request, request.options.logprobs)
        )
        if request.written:
            self.sampler.resume(request.written, request.drawn)
        self._vocabulary = vocabulary
        # Even where the context makes room, a reply that forgets its question does not continue for ever.
        self.max_tokens = len(request.written) + (request.options.max_tokens or n_ctx)
        self._stop = request.options.stop
        self._stream = TextStream(self._stop)
        self.text_before = "".join(self._stream.push(vocabulary.token_bytes(token)) for token in request.written)

    def event_log(self) -> EventLog:
        """Collect events from now on."""
        self.events = EventLog(self.sampler)
        return self.events

    def accepted(self, text: Sequence[int], done: Round, drafter: str) -> None:
        """A round has ended; ``text`` is prompt and reply now."""
        self.sampler.commit(text)
        self.statistics.add(done, drafter)
        if self.events is not None:
            self.events.round_over(done, drafter)

    def write(self, step: Callable[[Callable[[int], bool]], Round]) -> Round:
        """Let a round take tokens; if it fails for a reason that is not of this text, it has taken none.

        Args:
            step: does the round; called with ``take``.
        """
        n_tokens = len(self.token_ids)
        try:
            return step(self.take)
        except OF_ONE_TEXT:
            raise
        except BaseException:
            self.cut(n_tokens)
            if self.events is not None:
                self.events.drop_taken()
            raise

    def cut(self, n_tokens: int) -> None:
        """Forget all tokens but the first ones, and the pieces that nobody has taken."""
        del self.token_ids[n_tokens:]
        self.ready.clear()
        self.finish_reason = None
        self._stream = TextStream(self._stop)
        for token in self.token_ids:
            self._stream.push(self._vocabulary.token_bytes(token))

    def flush(self) -> None:
        """The reply has ended: release the text that might have become a stop string."""
        held = self._stream.finish()
        if held:
            self.ready.append(held)
        if self.events is not None:
            self.events.ended(held)

    def take(self, token: int) -> bool:
        """Take a token that the target has picked; says whether the reply ends with it."""
        self.token_ids.append(token)
        ends = self._vocabulary.ends(token)
        text = "" if ends else self._stream.push(self._vocabulary.token_bytes(token))
        if self.events is not None:
            self.events.took(text)
        if ends:
            self.finish_reason = "eos"
            return True
        if text:
            self.ready.append(text)
        if self._stream.stopped:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.max_tokens:
            self.finish_reason = "length"
        return self.finish_reason is not None
