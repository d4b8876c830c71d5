"""Makes a reply the answer of a conversation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edge_spec.chat.conversation import Conversation
from edge_spec.chat.messages import Message
from edge_spec.chat.window import Window
from edge_spec.generation.reply import Reply

__all__ = ["AnswerRecorder"]


class AnswerRecorder:
    """Takes down the answer to a conversation's last question, however its reply ends; see ``generation.Recorder``.

    Args:
        conversation: as it is with the question.
        answer: the message that the reply completes.
        window: what the model sees of the conversation; the reply may move it.
        on_answered: told the conversation with the answer.
        on_notice: told what the reader is told.
    """

    def __init__(
        self,
        conversation: Conversation,
        answer: Message,
        window: Window,
        *,
        on_answered: Callable[[Conversation], object],
        on_notice: Callable[[str], object],
    ) -> None:
        self._on_notice = on_notice
        self._conversation = conversation
        self._answer = answer
        self._window = window
        self._on_answered = on_answered

    def notice(self, sentence: str) -> None:
        """The reader has been told something."""
        self._on_notice(sentence)

    def ended(self, reply: Reply) -> None:
        """Keep what was written as the answer."""
        answer = replace(
            self._answer,
            content=reply.content,
            finish_reason=reply.finish_reason or "cancelled",
            drawn=reply.drawn,
            statistics={**reply.statistics.speculation(), **reply.statistics.timings()},
        )
        self._on_answered(self._conversation.answered(answer, (*reply.prompt, *reply.token_ids), self._window))
