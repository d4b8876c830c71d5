"""Turn the fields of a request into a job for a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edge_spec.errors import PromptError, PromptTooLong, SettingsError
from edge_spec.generation.options import REPLY_OPTIONS, ReplyKeywords
from edge_spec.generation.replies import Replies
from edge_spec.generation.tools.answers import AnswerParser
from edge_spec.generation.tools.chat_prompts import chat_prompt
from edge_spec.generation.tools.functions import Tool, declared
from edge_spec.generation.tools.grammar import answer_grammar, schema_of
from edge_spec.generation.tools.syntax import CallSyntax
from edge_spec.memory import Ledger
from edge_spec.model import TextModel
from edge_spec.sampling.lark import Lark
from edge_spec.server.answer_formats import CONSTRAINTS, WantedFormat, require_short, wanted_format
from edge_spec.server.errors import ApiError, bad_value, in_fields, too_long
from edge_spec.server.fields import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_TOLD,
    TOLD_BYTES,
    AllowedChoiceFields,
    ChatFields,
    ChoiceFields,
    CompletionFields,
    ReplyFields,
)
from edge_spec.server.messages import template_messages
from edge_spec.server.settings import ServerSettings
from edge_spec.server.unknown_fields import notices_of

__all__ = ["Job", "JobMaker"]

_PASSED = {
    option.field: name
    for name, option in REPLY_OPTIONS.items()
    if option.field not in (None, *CompletionFields.model_fields)
}
"""Options that OpenAI's API lacks, by their fields."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The replies that a request asks a model for.

    Attributes:
        prompts: token ids of each prompt.
        n: replies to each.
        asked: options of every reply.
        plainly: without drafts.
        syntax: how the model writes calls; None if it may make none.
        schemas: those of the arguments of calls, by function.
        calls_alone: whether an answer is calls or none: the form of any other one is given.
        token_events: whether the response tells who had guessed each token.
        notices: sentences about the request that its sender should see.
        n_schemas_not_kept: how many of them are about schemas of tools.
    """

    prompts: tuple[tuple[int, ...], ...]
    n: int
    asked: ReplyKeywords
    plainly: bool = False
    syntax: CallSyntax | None = None
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    calls_alone: bool = False
    token_events: bool = False
    notices: Sequence[str] = ()
    n_schemas_not_kept: int = 0

    @property
    def tells_tokens(self) -> bool:
        """Whether the response describes single tokens."""
        return self.token_events or self.asked.get("logprobs") is not None

    def replies(self, model: TextModel) -> Replies:
        """Return the replies, which are written together where the engine can.

        The second reply to a prompt is drawn like a retry of the first.
        """
        return model.replies(self.prompts, n=self.n, next_limit=(lambda: 0) if self.plainly else None, **self.asked)

    def parser(self, model: TextModel, number: int) -> AnswerParser:
        """Reads the reply ``number`` as a message."""
        opening = model.prompts.opening(self.prompts[number // self.n])
        return AnswerParser(opening, self.syntax, self.schemas, alone=self.calls_alone)


class JobMaker:
    """Makes jobs, and refuses impossible requests before they are queued. Usable from any thread.

    Args:
        ledger: of the memory for answers.

    Its methods raise ``ApiError`` where a field asks for what cannot be done, and errors of ``edge_spec.errors``.
    """

    def __init__(self, model: TextModel, settings: ServerSettings, ledger: Ledger) -> None:
        self._ledger = ledger
        self._model = model
        self._settings = settings

    def require_size(self, body: Mapping[str, Any]) -> None:
        """Raise if a request is too large for the context, before anything else is checked.

        Raises:
            ApiError: there are too many messages, token ids or biases, or too much text in messages.
        """
        n_ctx, biases, messages = self._model.n_ctx, body.get("logit_bias"), body.get("messages")
        if isinstance(biases, dict) and len(biases) > MAX_BIASES:
            raise bad_value("logit_bias", f"{len(biases)} biases, and at most {MAX_BIASES} are taken; leave some out")
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            if len(prompt) > MAX_CHOICES and not isinstance(prompt[0], int):
                raise bad_value("prompt", f"{len(prompt)} replies at once; ask for at most {MAX_CHOICES}")
            for each in prompt if prompt and isinstance(prompt[0], list) else [prompt]:
                if isinstance(each, list) and len(each) >= n_ctx and isinstance(each[0], int):
                    raise too_long(n_ctx, str(len(each)), "prompt")
        if isinstance(messages, list):
            # A template may omit thoughts of answers, and writes everything else.
            n_bytes = sum(map(_least_bytes, messages))
            least = len(messages)
            if n_bytes >= n_ctx > least:
                least = max(least, n_bytes // self._model.prompts.longest_token)
            if least >= n_ctx:
                raise too_long(n_ctx, f"at least {least}", "messages")

    def completion(self, asked: CompletionFields, body: Mapping[str, Any]) -> Job:
        """Continue texts as they are, like ``edge-spec run --raw``."""
        unknown = {"echo": asked.echo, "suffix": asked.suffix, "best_of": asked.best_of not in (None, asked.n)}
        _refuse(name for name, is_asked in unknown.items() if is_asked)
        _refuse(name for name in CONSTRAINTS if body.get(name) is not None)
        given = _prompts_of(asked.prompt)
        if len(given) * asked.n > MAX_CHOICES:
            raise bad_value("n", f"{len(given) * asked.n} replies at once; ask for at most {MAX_CHOICES}")
        try:
            prompts = tuple(self._tokens(prompt) for prompt in given)
        except PromptTooLong:
            raise
        except PromptError as error:
            raise bad_value("prompt", in_fields(error)) from None
        wanted = wanted_format(asked)
        grammar = wanted.grammar if wanted is not None else None
        return self._job(asked, body, prompts, wanted, grammar=grammar, logprobs=asked.logprobs)

    def chat(self, asked: ChatFields, body: Mapping[str, Any]) -> Job:
        """Answer messages."""
        _refuse(name for name in ("functions", "function_call") if body.get(name))
        _refuse(name for name in CONSTRAINTS if body.get(name) is not None)
        if asked.top_logprobs and not asked.logprobs:
            raise bad_value("top_logprobs", "needs logprobs to be true")
        tools = [Tool(**vars(tool.function)) for tool in asked.tools]
        functions = _callable(asked, tools)
        messages = template_messages(asked.messages)
        text, syntax = chat_prompt(
            self._model.prompts,
            messages,
            [declared(tool) for tool in tools] if asked.tool_choice != "none" else [],
            asked.chat_template_kwargs,
            answer=asked.add_generation_prompt is not False,
            continues=_continues(asked),
        )
        # Before any work that grows with the size of the request.
        tokens = self._fitting(self._model.prompts.tokenize_rendered(self._short(text, "messages")))
        wanted = wanted_format(asked)
        if wanted is not None and functions and not wanted.is_json:
            raise bad_value(wanted.field, "it and tools both say what may be written; give one of them")
        grammar = wanted.grammar if wanted is not None else None
        notices: list[str] = []
        try:
            grammar = answer_grammar(
                functions,
                syntax,
                template=self._model.prompts.chat_template or "",
                opening=self._model.prompts.opening(tokens),
                required=_must_call(asked),
                several=asked.parallel_tool_calls,
                answer=grammar,
                on_notice=notices.append,
            )
        except SettingsError as error:
            raise ApiError(400, error.message, code="invalid_schema", param="tools") from None
        logprobs = asked.top_logprobs if asked.logprobs else None
        job = self._job(asked, body, (tokens,), wanted, grammar=grammar, logprobs=logprobs)
        schemas = {function.name: schema_of(function) for function in functions}
        return replace(
            job,
            syntax=syntax if functions else None,
            schemas=schemas,
            calls_alone=wanted is not None,
            notices=[*notices, *job.notices],
            n_schemas_not_kept=len(notices),
        )

    def _tokens(self, prompt: str | list[int]) -> tuple[int, ...]:
        """Return the token ids of a prompt; raise if it does not fit the context."""
        if isinstance(prompt, str):
            return self._fitting(self._model.prompt_of(self._short(prompt, "prompt"), raw=True))
        return self._fitting(self._model.prompts.known(prompt))

    def _short(self, text: str, param: str) -> str:
        """Return the text; raise if it is too long for the context: tokenizing megabytes takes long."""
        n_ctx = self._model.n_ctx
        if len(text) > n_ctx and (least := self._model.prompts.least_tokens(text)) >= n_ctx:
            raise too_long(n_ctx, f"at least {least}", param)
        return text

    def _fitting(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens; raise if they do not fit."""
        if len(tokens) >= self._model.n_ctx:
            raise PromptTooLong(n_prompt=len(tokens), n_ctx=self._model.n_ctx)
        return tuple(tokens)

    def _job(
        self,
        asked: ReplyFields,
        body: Mapping[str, Any],
        prompts: tuple[tuple[int, ...], ...],
        wanted: WantedFormat | None,
        *,
        grammar: Lark | None,
        logprobs: int | None,
    ) -> Job:
        if not min(map(len, prompts)):
            raise bad_value("prompt", "it is empty; give some text to continue")
        if grammar is not None:
            try:
                self._model.grammar_of(grammar, None)
            except SettingsError as error:
                raise wanted.refused(error) if wanted is not None and wanted.is_json else error from None
        if asked.speculation not in (None, "off", "auto", self._model.mode):
            raise bad_value(
                "speculation",
                f"this server drafts by {self._model.mode!r}; ask for that, 'auto' or 'off', or start it with "
                "--speculation",
            )
        options: ReplyKeywords = {
            **self._settings.sampling,  # type: ignore[typeddict-item]
            **self._passed(asked, body),
            "max_tokens": asked.limit(self._settings.max_tokens),
            "stop": asked.stop,
            "seed": asked.own_seed,
            "grammar": grammar,
            "logprobs": logprobs,
            "reuse": True,
        }
        self._model.check_options(**options)
        if logprobs is not None and not asked.stream:
            self._require_room(asked, prompts, logprobs)
        return Job(
            prompts=prompts,
            n=asked.n,
            asked=options,
            plainly=asked.speculation == "off",
            token_events=asked.token_events,
            notices=notices_of(body, [*type(asked).model_fields, *map(str, _PASSED)]),
        )

    def _require_room(self, asked: ReplyFields, prompts: Sequence[tuple[int, ...]], n_top: int) -> None:
        """Raise if a response would exceed the size that is stored for one."""
        most = MAX_TOLD
        if (left := self._ledger.left_bytes) is not None:
            most = min(most, left // TOLD_BYTES)
        n_replies = len(prompts) * asked.n
        limit = asked.limit(self._settings.max_tokens) or self._model.n_ctx
        n_tokens = min(limit, self._model.n_ctx - min(map(len, prompts)))
        if n_replies * n_tokens * (1 + n_top) > most:
            raise bad_value(
                "n",
                f"{n_replies} replies of up to {n_tokens} tokens with {1 + n_top} log probabilities each are "
                f"{n_replies * n_tokens * (1 + n_top)}, and at most {most} are kept for a response; lower n, "
                "max_tokens or top_logprobs, or set stream",
            )

    def _passed(self, asked: ReplyFields, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a request that are passed on under their own names."""
        given = {name: value for name, value in body.items() if name in _PASSED and value is not None}
        for name, value in given.items():
            if wanted := REPLY_OPTIONS[_PASSED[name]].wanted_instead(value):
                shown = json.dumps(value, ensure_ascii=False)[:64]
                raise ApiError(400, f"{name} is {shown} and must be {wanted.lower()}", code="invalid_value", param=name)
        values: dict[str, Any] = {_PASSED[name]: value for name, value in given.items()}
        if values.get("top_p") == 0:
            # OpenAI's way to ask for the best token alone.
            values["top_p"] = sys.float_info.min
        if asked.logit_bias:
            if not all(name.isascii() and name.isdecimal() and len(name) < 10 for name in asked.logit_bias):
                raise bad_value("logit_bias", "its names must be token ids")
            values["logit_bias"] = {int(token): bias for token, bias in asked.logit_bias.items()}
        return values


def _refuse(names: Iterable[str]) -> None:
    for name in names:
        raise ApiError(400, f"{name}: this server does not offer it; leave it out", code="unsupported", param=name)


def _prompts_of(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """Return a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_value("prompt", "it is empty; give some text to continue")
    if isinstance(prompt[0], int):
        return [[token for token in prompt if isinstance(token, int)]]
    return [each for each in prompt if not isinstance(each, int)]


def _least_bytes(message: Any) -> int:
    """Return an estimate of the fewest bytes that a template writes for a message."""
    if not isinstance(message, dict) or message.get("role") == "assistant":
        return 0
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return sum(len(text.strip()) for text in texts if isinstance(text, str))


def _continues(asked: ChatFields) -> bool:
    """Return whether the last message is to be continued."""
    last, place = asked.messages[-1], f"messages[{len(asked.messages) - 1}]"
    if asked.continue_final_message:
        if asked.add_generation_prompt:
            raise bad_value("add_generation_prompt", "it begins another message; leave it out, or set it to false")
        if last.role != "assistant" or last.tool_calls or not last.content:
            raise bad_value("continue_final_message", f"{place} must be the assistant's, with a text to continue")
    return asked.continue_final_message


def _must_call(asked: ChatFields) -> bool:
    """Return whether the answer must be a call."""
    choice = asked.tool_choice
    return choice.allowed_tools.mode == "required" if isinstance(choice, AllowedChoiceFields) else choice != "auto"


def _callable(asked: ChatFields, functions: list[Tool]) -> list[Tool]:
    """Return those of the functions of a request that may be called."""
    require_short([function.parameters for function in functions], "tools")
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise bad_value("tools", "two functions have the same name; rename one")
    choice = asked.tool_choice
    if isinstance(choice, ChoiceFields | AllowedChoiceFields):
        is_one = isinstance(choice, ChoiceFields)
        chosen = [choice] if isinstance(choice, ChoiceFields) else choice.allowed_tools.tools
        named = {each.function.name for each in chosen}
        functions = [function for function in functions if function.name in named]
        if len(functions) < len(named) or not named:
            place = "tool_choice" if is_one else "tool_choice.allowed_tools.tools"
            raise bad_value(place, "it names a function that is not among tools" if named else "it names no function")
    elif choice == "required" and not functions:
        raise bad_value("tool_choice", "a call is required, but there are no tools")
    return functions if choice != "none" else []
