"""Writes conversations down in tokens, by the model's template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edge_spec.chat.conversation import Conversation, Turn
from edge_spec.chat.messages import Message
from edge_spec.model import TextModel
from edge_spec.speculation.followed_text import common_prefix

__all__ = ["Scribe", "continued"]


class Scribe:
    """Makes tokens of what is said.

    Args:
        options: further names for the model's chat template, such as ``tools`` or ``enable_thinking``.
    """

    def __init__(self, model: TextModel, options: Mapping[str, Any]) -> None:
        self._model = model
        self.options = dict(options)

    def read(self, messages: Sequence[Message]) -> Conversation:
        """A conversation of these messages, as if they had been said one after the other.

        Raises:
            PromptError: the template refuses them.
        """
        told = Conversation()
        for message in messages:
            if message.role == "user":
                told = self.ask(told, message)
            elif message.role == "assistant" and told.turns:
                # Not as the template ends it: the model may have more to say.
                told = told.answered(message, (*told.tokens, *self._tokens(message.content)), told.window)
            else:
                told = replace(told, messages=(*told.messages, message))
        return told

    def ask(self, told: Conversation, question: Message) -> Conversation:
        """The conversation with a question, up to where its answer begins.

        Raises:
            PromptError: the template refuses it.
        """
        messages = (*told.messages, question)
        before = told.tokens
        tokens, kept = continued(self._model, before, self._render(messages, answer=True))
        # An answer that was cut short got its end from the template: that belongs to the answer's turn.
        start = kept + (0 < kept < len(tokens) and self._model.ends(tokens[kept]))
        turn = Turn(
            n_messages=len(told.messages), start=start, kept=kept, rest=tuple(before[kept:]), seen_from=told.seen_from
        )
        head = told.head if told.turns else self._head(told.system)
        return replace(told, messages=messages, tokens=tuple(tokens), turns=(*told.turns, turn), head=head)

    def asked_again(self, told: Conversation) -> Conversation:
        """The conversation as it was when its last question had been asked.

        Raises:
            SettingsError: there was none.
        """
        question = told.messages[told.last_turn.n_messages]
        return self.ask(told.undone(), question)

    def written(self, told: Conversation, prompt: Sequence[int]) -> tuple[int, ...]:
        """Tokens of the last answer, which follows ``prompt``: its own, as far as they are known."""
        assert told.answer is not None
        if told.tokens[: len(prompt)] == tuple(prompt):
            return told.tokens[len(prompt) :]
        return tuple(self._tokens(told.answer.content.removeprefix(self.opening(prompt))))

    def opening(self, prompt: Sequence[int]) -> str:
        """What of the answer stands at the end of a prompt: some templates open the thought."""
        end = b"".join(map(self._model.spelling, prompt[-8:])).decode("utf-8", "replace")
        _, opened, after = end.rpartition("<think>")
        return opened + after if opened and not after.strip() else ""

    def _head(self, system: Message | None) -> int:
        """Tokens that open every conversation with this system message."""
        if system is None:
            return 0
        first, second = (
            self._model.prompt_tokens(self._render((system, Message(role="user", content=text)), answer=False))
            for text in ("a", "b")
        )
        n = common_prefix(first, second)
        # What is common at last is the beginning of a user's message.
        seam = next((place for place in range(n - 1, -1, -1) if self._model.is_control(first[place])), 0)
        return seam if seam > 1 else n

    def _tokens(self, text: str) -> list[int]:
        return self._model.tokenize(text, add_special=False)

    def _render(self, messages: Sequence[Message], *, answer: bool) -> str:
        return self._model.render([message.for_template() for message in messages], answer=answer, options=self.options)


def continued(model: TextModel, before: Sequence[int], text: str) -> tuple[list[int], int]:
    """Tokens of a rendered conversation that go on after ``before``, the tokens of its earlier turns.

    What a model wrote can often be cut into tokens in several ways. Its own way stays, as far as the text still
    says the same, so that a cache of ``before`` serves the next turn. The seam lies where a control token stands
    on one of its sides: there tokenisers cut in any case.

    Returns:
        The tokens, and how many of them are the first of ``before``.
    """
    raw = text.encode("utf-8", "surrogatepass")
    kept = kept_bytes = place = 0
    for n, token in enumerate(before):
        piece = model.spelling(token)
        if raw[place : place + len(piece)] != piece:
            # An answer that a stop string or another end token ended goes on differently in the template.
            if _begins_with_control(model, raw[place:]):
                kept, kept_bytes = n, place
            break
        is_control = model.is_control(token)
        if is_control:
            kept, kept_bytes = n, place
        place += len(piece)
        if is_control or (n + 1 == len(before) and _begins_with_control(model, raw[place:])):
            kept, kept_bytes = n + 1, place
    if not kept:
        return model.prompt_tokens(text), 0
    rest = raw[kept_bytes:].decode("utf-8", "surrogatepass")
    return [*before[:kept], *model.tokenize(rest, add_special=False)], kept


def _begins_with_control(model: TextModel, raw: bytes) -> bool:
    rest = raw.decode("utf-8", "replace")
    tokens = model.tokenize(rest, add_special=False) if rest else []
    return bool(tokens) and model.is_control(tokens[0])
