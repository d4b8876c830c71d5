"""The prompt of a chat: messages and tools as the model's template writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from edge_spec.errors import PromptError, PromptTooLong
from edge_spec.generation.control_names import RenderedText, unused_character
from edge_spec.generation.prompts import Prompt, PromptBuilder
from edge_spec.generation.thinking import Think, template_options_of
from edge_spec.generation.tools.call_messages import in_plain_text, one_call_each, with_thoughts
from edge_spec.generation.tools.functions import Tool, declared
from edge_spec.generation.tools.given_messages import template_messages
from edge_spec.generation.tools.syntax import HERMES, CallSyntax, syntax_of

__all__ = ["chat_prompt", "prompt_tokens"]


def prompt_tokens(
    prompts: PromptBuilder,
    prompt: Prompt,
    functions: Sequence[Tool] = (),
    *,
    raw: bool = False,
    options: Mapping[str, Any] = MappingProxyType({}),
    think: Think = None,
    answer: bool = True,
    continues: bool = False,
    n_ctx: int | None = None,
) -> list[int]:
    """Return token ids of a text or messages; see ``PromptBuilder.tokens_of``.

    Args:
        functions: that the model is shown.
        options, think, answer, continues: of messages, see ``chat_prompt``.
        n_ctx: the context that it has to fit; None if it need not. Tokenizing megabytes takes long.

    Raises:
        PromptError: it is neither, or the chat template is missing or refuses it, or it does not fit. SettingsError:
            the template cannot be told to ``think`` so, or is not used.
    """
    if raw or prompts.chat_template is None:
        # What has no template cannot be told anything.
        template_options_of(None, think)
        text: str = prompts.text_of(prompt, raw=raw)
    else:
        messages = template_messages(prompts.messages_of(prompt))
        shown = [declared(function) for function in functions]
        text, _ = chat_prompt(prompts, messages, shown, options, think=think, answer=answer, continues=continues)
    if n_ctx is not None and len(text) > n_ctx and (least := prompts.least_tokens(text)) >= n_ctx:
        raise PromptTooLong(n_prompt=least, n_ctx=n_ctx, is_least=True)
    tokens = prompts.tokenize(text)
    if n_ctx is not None and len(tokens) >= n_ctx:
        raise PromptTooLong(n_prompt=len(tokens), n_ctx=n_ctx)
    return tokens


def chat_prompt(
    prompts: PromptBuilder,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    options: Mapping[str, Any],
    *,
    think: Think = None,
    answer: bool = True,
    continues: bool = False,
) -> tuple[RenderedText, CallSyntax]:
    """Return the prompt, and how the model writes calls.

    Args:
        options: further names for the template, such as ``enable_thinking``.
        think: whether the model is to think, see ``template_options_of``; ``options`` come before it.
        answer: end with what comes before an answer.
        continues: end within the last message instead, after its text.

    Raises:
        PromptError: the template refuses the messages. SettingsError: it cannot be told to ``think`` so.
    """
    template = prompts.chat_template or ""
    options = {**template_options_of(prompts.chat_template, think), **options}
    end = unused_character([messages, tools, options], template) if continues else ""
    if end:
        messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + end}]
    messages = with_thoughts(messages, template)
    syntax = syntax_of(template)
    if syntax is not None and tools:
        options = {**options, "tools": list(tools)}
    if syntax is None:
        messages = in_plain_text(messages, tools)
    elif "tool_calls" not in template:
        # SmolLM3's and LFM2's show tools, and would leave earlier calls out.
        messages = in_plain_text(messages, (), syntax)
    elif not syntax.takes_many:
        messages = one_call_each(messages)
    try:
        text = prompts.render(messages, answer=answer and not end, options=options)
    except PromptError:
        if syntax is not None or messages[0]["role"] != "system":
            raise
        # Some templates, such as Gemma 2's, know no system message.
        text = prompts.render(_as_user_messages(messages), answer=answer and not end, options=options)
    if end:
        place = text.rfind(end)
        if place < 0:
            raise PromptError("the model's chat template leaves the last message out", hint="ask for a new answer")
        text = text.before(place)
    return text, syntax or HERMES


def _as_user_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the system message as the beginning of the first question."""
    system, *others = messages
    question = next((number for number, message in enumerate(others) if message["role"] == "user"), None)
    if question is not None:
        content = f"{system['content']}\n\n{others[question]['content']}"
        others[question] = {**others[question], "content": content}
    return others
