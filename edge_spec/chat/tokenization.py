"""Tokenize conversations as the model's chat template renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from edge_spec.chat.chat_model import ChatModel
from edge_spec.chat.conversation import Conversation, Message, Turn, asked_together
from edge_spec.generation.control_names import RenderedText
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.generation.thinking import Think
from edge_spec.generation.tools.chat_prompts import chat_prompt
from edge_spec.generation.tools.functions import Tool, declared
from edge_spec.speculation.text import common_prefix

__all__ = ["ConversationTokenizer", "Told", "continued"]


class Told(NamedTuple):
    """The functions and the way to think that a model is given besides the messages.

    Attributes:
        functions: that it may call.
        think: whether it is to think.
    """

    functions: Sequence[Tool] = ()
    think: Think = None


_NOTHING = Told()


class ConversationTokenizer:
    """Adds messages to conversations.

    Args:
        template_options: further names for the model's chat template, such as ``tools`` or ``enable_thinking``.
    """

    def __init__(self, model: ChatModel, template_options: Mapping[str, Any]) -> None:
        self._model = model
        self.template_options = dict(template_options)
        # The head of the last conversation, and its number of tokens.
        self._begins_with: tuple[Message | None, Sequence[Tool], Think] = (None, (), None)
        self._n_head = 0

    def read(self, messages: Sequence[Message], told: Told = _NOTHING) -> Conversation:
        """Return a conversation of these messages, as if they had been sent one after the other.

        Args:
            told: what the model is told besides.

        Raises:
            PromptError: the template refuses them.
        """
        conversation = Conversation()
        for asked in asked_together(messages):
            message = asked[0]
            if message.asks:
                conversation = self.ask(conversation, asked, told)
            elif message.role == "assistant" and conversation.turns and message.tool_calls:
                text = self._render((*conversation.messages, message), told, answer=False)
                read, _ = continued(self._model.prompts, conversation.tokens, text)
                conversation = conversation.answered(message, read, conversation.window)
            elif message.role == "assistant" and conversation.turns:
                # Leave out the end that the template would add: the model may continue this answer.
                prompts, before = self._model.prompts, conversation.tokens
                tokens = (*before, *prompts.tokenize_answer(message.content, prompts.opening(before)))
                conversation = conversation.answered(message, tokens, conversation.window)
            else:
                conversation = replace(conversation, messages=(*conversation.messages, message))
        return conversation

    def ask(self, conversation: Conversation, asked: Sequence[Message], told: Told = _NOTHING) -> Conversation:
        """Return the conversation with a question, or results of calls, up to where the answer begins.

        Args:
            told: what the model is told besides.

        Raises:
            PromptError: the template refuses it.
        """
        messages = (*conversation.messages, *asked)
        prompts, text = self._model.prompts, self._render(messages, told, answer=True)
        tokens, kept = continued(prompts, conversation.tokens, text)
        head = self._head(conversation.system, told)
        if conversation.turns and (head != conversation.head or kept < head):
            # With other tools, or another way to think, the beginning may differ, so turns have other positions.
            conversation = self.read(conversation.messages, told)
            tokens, kept = continued(prompts, conversation.tokens, text)
        before = conversation.tokens
        # If an answer was cut short, the template has added its end token, which belongs to the answer's turn.
        start = kept + (0 < kept < len(tokens) and prompts.ends(tokens[kept]))
        turn = Turn(
            n_messages=len(conversation.messages),
            start=start,
            kept=kept,
            rest=tuple(before[kept:]),
            seen_from=conversation.seen_from,
        )
        return replace(conversation, messages=messages, tokens=tokens, turns=(*conversation.turns, turn), head=head)

    def asked_again(self, conversation: Conversation, told: Told = _NOTHING) -> Conversation:
        """Return the conversation as it was after its last question.

        Raises:
            SettingsError: there is no question.
        """
        asked = asked_together(conversation.messages[conversation.last_turn.n_messages :])[0]
        return self.ask(conversation.undone(), asked, told)

    def written(self, conversation: Conversation, prompt: Sequence[int]) -> tuple[int, ...]:
        """Return the last answer's tokens, which follow ``prompt``: as they were written, or else tokenized again."""
        assert conversation.answer is not None
        if tuple(conversation.tokens[: len(prompt)]) == tuple(prompt):
            return tuple(conversation.tokens[len(prompt) :])
        prompts = self._model.prompts
        return tuple(prompts.tokenize_answer(conversation.answer.content, prompts.opening(prompt)))

    def _head(self, system: Message | None, told: Told) -> int:
        """Return the number of tokens with which every conversation with this system message begins."""
        if system is None and not told.functions and told.think is None:
            return 0
        begins_with = (system, told.functions, told.think)
        if begins_with != self._begins_with:
            self._begins_with, self._n_head = begins_with, self._found_head(system, told)
        return self._n_head

    def _found_head(self, system: Message | None, told: Told) -> int:
        prompts, first = self._model.prompts, (system,) if system is not None else ()
        one, another = (
            prompts.tokenize_rendered(self._render((*first, Message(role="user", content=text)), told, answer=False))
            for text in ("a", "b")
        )
        n = common_prefix(one, another)
        # The common part ends with the beginning of a user's message.
        head = next((place for place in range(n - 1, -1, -1) if prompts.is_control(one[place])), 0)
        return head if head > 1 else n

    def _render(self, messages: Sequence[Message], told: Told, *, answer: bool) -> RenderedText:
        names = {call.id: call.name for message in messages for call in message.tool_calls}
        given = [message.for_template() for message in messages]
        for each in given:
            if "tool_call_id" in each:
                each["name"] = names.get(each["tool_call_id"], "")
        tools = [declared(function) for function in told.functions]
        options, think = self.template_options, told.think
        text, _ = chat_prompt(self._model.prompts, given, tools, options, think=think, answer=answer)
        return text


def continued(prompts: PromptBuilder, before: Sequence[int], text: RenderedText) -> tuple[list[int], int]:
    """Return tokens of a rendered conversation that continues ``before``, the tokens of its earlier turns.

    A text can often be tokenized in several ways. The tokens in ``before`` are kept as far as the text is still the
    same, so that a cache of ``before`` serves the next turn. Old and new tokens meet where a control token stands on
    one side: there tokenizers cut in any case.

    Returns:
        The tokens, and how many of them are the first of ``before``.
    """
    raw = text.encode("utf-8", "surrogatepass")
    controls = prompts.controls_in(text)
    kept = kept_bytes = place = 0
    for n, token in enumerate(before):
        piece, is_control = prompts.spelling(token), prompts.is_control(token)
        end = place + len(piece)
        # A control token and its name in a message are different tokens.
        as_written = controls.get(place) == end if is_control else controls.keys().isdisjoint(range(place, end))
        if raw[place:end] != piece or not as_written:
            # The texts differ from here on, for example because the answer ended at a stop string or another end token.
            if place in controls:
                kept, kept_bytes = n, place
            break
        if is_control:
            kept, kept_bytes = n, place
        place = end
        if is_control or (n + 1 == len(before) and place in controls):
            kept, kept_bytes = n + 1, place
    if not kept:
        return prompts.tokenize_rendered(text), 0
    rest = text.after(len(raw[:kept_bytes].decode("utf-8", "surrogatepass")))
    return [*before[:kept], *prompts.tokenize(rest, add_special=False)], kept
