"""Prompts: from texts and messages to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import index
from typing import Any

from edge_spec.errors import Arguments, PromptError, Sentence
from edge_spec.generation.control_names import ControlNames, RenderedText
from edge_spec.generation.thoughts import HARMONY, THOUGHTS, own_marks
from edge_spec.tokens.tokenizer import Tokenizer

__all__ = ["Messages", "Prompt", "PromptBuilder", "render_chat"]

Messages = Sequence[Mapping[str, Any]]
"""A conversation: ``{"role": "system" | "user" | "assistant", "content": ...}`` each. One of the assistant may have
``tool_calls`` in OpenAI's form, and one with the role ``tool`` has the ``tool_call_id`` that it is the result of."""

Prompt = str | Messages

_MESSAGE = 'a message is {"role": "user", "content": "..."}'

_OPENING_TOKENS = 8
"""A mark that opens a thought has no more tokens at the end of a prompt."""


class PromptBuilder:
    """Writes prompts in the tokens of a model.

    Args:
        n_vocab: number of token ids.

    Attributes:
        chat_template: how the model writes conversations, in Jinja; None if it does not.
    """

    def __init__(self, tokenizer: Tokenizer, chat_template: str | None, n_vocab: int) -> None:
        self._tokenizer = tokenizer
        self.chat_template = chat_template
        self._n_vocab = n_vocab

    def tokens_of(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Token ids of a text or messages; a text is a user's message unless it is ``raw``.

        Raises:
            PromptError: it is neither, or the chat template is missing or refuses it.
        """
        return self.tokenize(self.text_of(prompt, raw=raw))

    def text_of(self, prompt: Prompt, *, raw: bool = False) -> str:
        """Return the text whose tokens ``tokens_of`` returns."""
        if raw or self.chat_template is None:
            if not isinstance(prompt, str):
                raise _no_template()
            return prompt
        return self.render(self.messages_of(prompt))

    def messages_of(self, prompt: Prompt) -> Messages:
        """Return messages; a text is a user's.

        Raises:
            PromptError: it is neither, or an empty text.
        """
        if isinstance(prompt, str) and not prompt.strip():
            raise PromptError("the prompt is empty", hint="give some text")
        messages: Messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if not isinstance(messages, list | tuple) or not all(isinstance(message, Mapping) for message in messages):
            raise PromptError("a prompt is a text or a list of messages", hint=_MESSAGE)
        if not messages:
            raise PromptError("the list of messages is empty", hint=f"give at least one: {_MESSAGE}")
        for number, message in enumerate(messages):
            if not isinstance(message.get("role"), str) or ("content" not in message and "tool_calls" not in message):
                raise PromptError(f"message {number} lacks its role or its content", hint=_MESSAGE)
        return messages

    def render(
        self, messages: Messages, *, answer: bool = True, options: Mapping[str, Any] | None = None
    ) -> RenderedText:
        """Return a conversation as the model's chat template writes it; see ``render_chat``.

        Names of control tokens that messages or options hold are text: the result knows where.

        Raises:
            PromptError: there is no template, or it refuses the messages.
        """
        if self.chat_template is None:
            raise _no_template()
        bos, eos = (self._tokenizer.name(token) for token in (self._tokenizer.bos, self._tokenizer.eos))
        mark = self._controls.mark([messages, options], self.chat_template)
        if mark:
            messages, options = self._controls.marked(messages, mark), self._controls.marked(options, mark)
        text = render_chat(self.chat_template, messages, bos=bos, eos=eos, answer=answer, options=options)
        return RenderedText.unmarked(text, mark) if mark else RenderedText(text)

    def tokenize(self, text: str, *, add_special: bool = True, controls: bool = True) -> list[int]:
        """Token ids of a text, with ``add_special`` after those that begin every text, unless it begins with the first.

        What a tokenizer adds at the end of a text is left out: after a prompt it would end the reply.

        Args:
            controls: names of control tokens in it become these tokens, as far as no message said them.
        """
        if not isinstance(text, str):
            raise PromptError(f"a text is needed, not {type(text).__name__}", hint="give a str")
        said = text.said if isinstance(text, RenderedText) else frozenset[int]()
        # Many templates begin with the begin-of-text token themselves; two of them confuse a model.
        bos = self._tokenizer.name(self._tokenizer.bos)
        adds = add_special and not (controls and bos and text.startswith(bos) and 0 not in said)
        parts = self._controls.parts(text) if controls and said else [(text, controls)]
        tokens: list[int] = []
        for number, (part, controlled) in enumerate(parts):
            found = self._tokenizer.tokenize(part, add_special=adds and not number, controls=controlled)
            tokens += found[: len(found) - self._n_behind] if adds and not number else found
        return tokens

    @cached_property
    def _n_behind(self) -> int:
        """Return the number of tokens that the tokenizer adds after a text."""
        text, whole = (self._tokenizer.tokenize("a", add_special=each) for each in (False, True))
        start = next((n for n in range(len(whole)) if text and whole[n : n + len(text)] == text), None)
        return len(whole) - start - len(text) if start is not None else 0

    @cached_property
    def _has_space_before(self) -> bool:
        """Whether the tokenizer puts a space before a text, as SentencePiece does."""
        return self._tokenizer.text(self._tokenizer.tokenize("a", add_special=False)) == " a"

    def controls_in(self, text: str) -> dict[int, int]:
        """Return where the control tokens of a rendered conversation begin and end in its bytes."""
        found, n_bytes, last = {}, 0, 0
        for start, end in self._controls.controls(text):
            begin = n_bytes + len(text[last:start].encode("utf-8", "surrogatepass"))
            found[begin] = n_bytes = begin + len(text[start:end].encode("utf-8", "surrogatepass"))
            last = end
        return found

    @cached_property
    def _controls(self) -> ControlNames:
        return ControlNames(self._tokenizer.control_names)

    def least_tokens(self, text: str) -> int:
        """Return how many tokens a text has at least; found much faster than its tokens."""
        n_controls = sum(1 for _ in self._controls.controls(text))
        return max(-(-len(text.encode("utf-8", "replace")) // self.longest_token), n_controls)

    @cached_property
    def longest_token(self) -> int:
        """The bytes of the longest token."""
        return max(1, *(len(self.spelling(token)) for token in range(self._n_vocab)))

    def tokenize_answer(self, content: str, opening: str = "") -> list[int]:
        """Token ids of an answer after its opening: names of control tokens are text in it, but for its own marks."""
        n = len(opening) if content.startswith(opening) else 0
        own = own_marks(content)
        said = {start - n for start, _ in self._controls.places(content) if start >= n and start not in own}
        return self.tokenize(RenderedText.of(content[n:], said), add_special=False)

    def tokenize_rendered(self, text: str) -> list[int]:
        """Token ids of a rendered conversation."""
        return self.tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, without control tokens, and without the space that a tokenizer puts first."""
        text = self._tokenizer.text(self.known(tokens))
        return text[1:] if self._has_space_before and text.startswith(" ") else text

    def known(self, tokens: Sequence[int]) -> list[int]:
        """Token ids as plain integers.

        Raises:
            PromptError: one of them is not a token id of this model.
        """
        try:
            known = [index(token) for token in tokens]
        except TypeError:
            raise PromptError(
                "tokens must be whole numbers", hint=Sentence("{tokenize()} makes them from a text")
            ) from None
        bad = next((token for token in known if not 0 <= token < self._n_vocab), None)
        if bad is not None:
            raise PromptError(
                f"token {bad} is not in the vocabulary of {self._n_vocab}", hint=f"ids are 0 to {self._n_vocab - 1}"
            )
        return known

    def is_control(self, token: int) -> bool:
        """Return whether a token stands for a place in a text, such as the end of a message."""
        raw = self._tokenizer.token_bytes(token)
        return raw.decode("utf-8", "replace") in self._controls if raw else bool(self._tokenizer.name(token))

    def spelling(self, token: int) -> bytes:
        """Return how a rendered conversation writes a token: its bytes, or the name of a control token."""
        return self._tokenizer.token_bytes(token) or self._tokenizer.name(token).encode()

    def ends(self, token: int) -> bool:
        """Return whether a token ends a reply."""
        return self._tokenizer.ends(token)

    def opening(self, prompt: Sequence[int]) -> str:
        """Return what of the reply stands at the end of a prompt: some templates open the thought, or the channels."""
        end = b"".join(map(self.spelling, prompt[-_OPENING_TOKENS:])).decode("utf-8", "replace")
        for mark in (*(marks.opening for marks in THOUGHTS), HARMONY.between):
            _, opened, after = end.rpartition(mark)
            if opened and not after.strip():
                return opened + after
        return ""


def _no_template() -> PromptError:
    return PromptError("messages need a chat template", hint="this model has none: give a text")


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos: str,
    eos: str,
    answer: bool = True,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Return the prompt after which the assistant's answer is expected.

    Templates come from model files and are not trusted: they run in a sandbox with limits of time and memory, and
    cannot change what they are given.

    Args:
        messages: ``{"role": ..., "content": ...}`` each, and further keys that the template understands.
        bos, eos: text of the tokens that begin and end a text; empty if there are none.
        answer: end with what comes before an answer.
        options: further names for the template, such as ``tools`` or ``enable_thinking``.

    Raises:
        PromptError: the template is broken, or refuses the messages.
    """
    # Jinja takes longer to load than most commands run.
    from jinja2.exceptions import SecurityError

    from edge_spec.generation.template_sandbox import TemplateSandbox

    try:
        names = {
            **(options or {}),
            "messages": [dict(message) for message in messages],
            "bos_token": bos,
            "eos_token": eos,
            "add_generation_prompt": answer,
        }
        return TemplateSandbox(names).rendered(template, names)
    except SecurityError as error:
        raise PromptError(
            f"the model's chat template uses a forbidden operation: {error}",
            hint=Sentence("use {instead}", instead=Arguments(raw=True)),
        ) from None
    except Exception as error:  # a template can raise anything
        raise PromptError(
            f"the model's chat template fails: {error}",
            hint=Sentence("use {instead}, or another model", instead=Arguments(raw=True)),
        ) from None
