"""What makes a reply the answer of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from edge_spec.chat.conversation import Conversation, Message
from edge_spec.generation.context import Context, Notice
from edge_spec.generation.writing import Writing
from edge_spec.sampling import Sampler
from edge_spec.speculation.loop import Speculator

__all__ = ["Answer"]

_READ_AGAIN = "the conversation is read again; what follows may differ where two tokens are equally likely"


class AskingSession(Protocol):
    """The session whose question is answered.

    Attributes:
        was_read: the models have read it before, so that reading it again deserves a notice.
        on_notice: called with what the reader is told.
    """

    was_read: bool
    on_notice: Callable[[str], object]

    def answered(self, conversation: Conversation) -> None:
        """Take over the conversation with its answer."""


class Answer(Context):
    """Moves the window while the answer to a conversation's last question is written, and then keeps the answer.

    However the reply ends, what was written becomes the answer: it is also the reply's ``Recorder``.

    Args:
        session: whose caches are resumed for it.
        conversation: as it is with the question.
        message: what the reply completes.
    """

    def __init__(self, session: AskingSession, conversation: Conversation, message: Message) -> None:
        self.session: AskingSession = session
        self._conversation = conversation
        self._message = message
        self._window = conversation.window
        # Once the answer is being written. Before, the models may still have that of another reply.
        self._sampler: Sampler | None = None
        self.shares = not self._window.n_forgotten

    def require_room(self, n_tokens: int, n_ctx: int) -> None:
        self._window.fit(n_tokens, n_ctx)

    def begin(
        self, speculator: Speculator, text: Sequence[int], sampler: Sampler, *, resumed: bool, notice: Notice
    ) -> None:
        window = self._window
        if not resumed:
            speculator.forget()
            if self.session.was_read:
                notice(_READ_AGAIN)
        self.session.was_read = True
        start = window.fit(len(text), speculator.model.n_ctx)
        if start is not None:
            self._move(speculator, start, notice)
        speculator.begin(window.seen(text), sampler, reuse=True)
        # Last: after a cancel before this line, all of it is done once more.
        sampler.forget(window.n_forgotten)
        self._sampler = sampler

    def make_room(self, speculator: Speculator, notice: Notice) -> bool:
        n_tokens = len(speculator.text) + self._window.n_forgotten
        self._move(speculator, self._window.next_start(n_tokens, speculator.model.n_ctx), notice)
        return True

    def can_shrink(self, speculator: Speculator, n_ctx: int) -> bool:
        return self._window.head + n_ctx // 8 < n_ctx

    def notice(self, sentence: str) -> None:
        self.session.on_notice(sentence)

    def ended(self, reply: Writing) -> None:
        message = replace(
            self._message,
            content=reply.content,
            finish_reason=reply.finish_reason or "cancelled",
            drawn=reply.drawn,
            statistics={**reply.statistics.speculation(), **reply.statistics.timings()},
        )
        tokens = (*reply.prompt, *reply.token_ids)
        self.session.answered(self._conversation.answered(message, tokens, self._window))

    def _move(self, speculator: Speculator, start: int, notice: Notice) -> None:
        head, forgotten = self._window.head, start - self._window.start
        if head + forgotten < len(speculator.text):
            speculator.cut(head, head + forgotten)
        self._window.start, self.shares = start, False
        if self._sampler is not None:
            self._sampler.forget(forgotten)
        notice(f"the context is full: the model no longer sees the oldest {forgotten} tokens")
