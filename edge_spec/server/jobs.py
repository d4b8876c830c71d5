"""What requests ask of the model, whatever their dialect."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from edge_spec.errors import PromptError, PromptTooLong, SettingsError
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.options import REPLY_OPTIONS, ReplyKeywords
from edge_spec.generation.replies import Replies
from edge_spec.generation.reply import Reply
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.thinking import Think, template_options_of, think_of
from edge_spec.memory import Ledger
from edge_spec.model import TextModel
from edge_spec.server.errors import ApiError, Names, api_error, bad_value, in_fields, too_long
from edge_spec.server.settings import ServerSettings

__all__ = ["MAX_CHOICES", "MAX_STOPS", "MAX_TOLD", "DeltaReader", "Job", "JobMaker", "options_of"]

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_TOLD = 1 << 20
"""The most log probabilities in a response that is not streamed."""

_TOLD_BYTES = 96
"""Bytes of each of them."""

_MAX_BIASES = 1 << 12
_MAX_GRAMMAR = 1 << 16
"""The longest grammar, in characters: a small request must not keep the processor busy for long."""

_MAX_SCHEMAS = 1 << 17
"""The most characters of schemas in a request."""

Tools = Sequence[Mapping[str, Any]]
"""In OpenAI's form, as in Python."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The replies that a request asks for.

    Attributes:
        requests: one for each prompt, checked.
        n: replies to each.
        is_stream: each piece is sent as it comes.
        is_plain: without drafts.
        notices: sentences about the request that its sender should see, beside those of its replies.
    """

    requests: Sequence[ReplyRequest]
    n: int = 1
    is_stream: bool = False
    is_plain: bool = False
    notices: Sequence[str] = ()

    def replies(self, model: TextModel) -> Replies:
        """Return the replies, which are written together where the engine can.

        The second reply to a prompt is drawn like a retry of the first.
        """
        return model.replies(self.requests, n=self.n, next_limit=(lambda: 0) if self.is_plain else None)

    def reader(self, number: int) -> DeltaReader:
        """Return what takes apart the reply ``number`` as it comes."""
        return DeltaReader(self.requests[number // self.n])

    def facts(self, model: TextModel, answers: Sequence[Reply], notices: Sequence[str]) -> dict[str, Any]:
        """Return what the forms of other servers lack: the seed that was drawn, times, how much faster the only answer
        was for its drafts, as far as is known, and what the sender should know.

        Plain rounds are measured without a grammar and without log probabilities, whose time they would take as well:
        the times of such an answer are not compared with them.

        Args:
            notices: of the replies.
        """
        request, done = self.requests[0], [answer.statistics for answer in answers]
        is_like_plain = len(done) == 1 and request.grammar is None and request.options.logprobs is None
        return {
            "seed": answers[0].settings.seed,
            "identity": [answer.identity for answer in answers],
            "timings": [each.timings() for each in done],
            "speed_up": model.speed_up(done[0]) if is_like_plain else None,
            "notices": [*dict.fromkeys((*request.notices, *self.notices, *notices))],
        }


class DeltaReader:
    """Takes a reply apart as it comes, into deltas of a message; one to a raw prompt is a text as a whole."""

    def __init__(self, request: ReplyRequest) -> None:
        self._parser = None if request.options.raw else request.reading.parser(request.opening)

    @property
    def has_calls(self) -> bool:
        """Whether there has been a call of a tool."""
        return self._parser is not None and self._parser.has_calls

    def deltas(self, events: Iterable[TokenEvent], answer: Reply | None) -> list[dict[str, Any]]:
        """Return what tokens add to the message, or the end of the ``answer``."""
        text = "".join(event.text for event in events)
        if self._parser is None:
            return [{"content": text}] if text else []
        return self._parser.push(text) if answer is None else self._parser.finish(is_cut=answer.is_cut)


class JobMaker:
    """Makes jobs, and refuses impossible requests before they are queued. Usable from any thread.

    Args:
        ledger: of the memory for answers.

    Attributes:
        model: what writes.
        settings: how the server behaves.
        started: when it began, in seconds of Unix.

    Its methods raise ``ApiError`` where a field asks for what cannot be done, and errors of ``edge_spec.errors``.
    """

    def __init__(self, model: TextModel, settings: ServerSettings, ledger: Ledger) -> None:
        self.model = model
        self.settings = settings
        self.started = int(time.time())
        self._ledger = ledger

    def think(self, asked: object, field: str, notices: list[str]) -> Think:
        """Return how the model is to think; add to the notices that its chat template cannot be told so.

        Clients send the same fields to all models, so a template without a switch is no error.

        Raises:
            ApiError: it is not on, off or the name of a level.
        """
        try:
            think = think_of(asked)
        except SettingsError as error:
            raise bad_value(field, error.problem) from None
        with suppress(SettingsError):
            template_options_of(self.model.prompts.chat_template, think)
            return think
        notices.append(f"{field}: this model's chat template cannot be told so, and it was ignored")
        return None

    def require_size(self, body: Mapping[str, Any]) -> None:
        """Raise if a request is too large for the context, before anything else is checked.

        Raises:
            ApiError: there are too many messages, token ids or biases, or too much text in messages.
        """
        n_ctx, options, messages = self.model.n_ctx, body.get("options"), body.get("messages")
        for place, given in {"": body, "options.": options if isinstance(options, dict) else {}}.items():
            biases = given.get("logit_bias")
            if isinstance(biases, dict) and len(biases) > _MAX_BIASES:
                message = f"{len(biases)} biases, and at most {_MAX_BIASES} are taken; leave some out"
                raise bad_value(f"{place}logit_bias", message)
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
                least = max(least, n_bytes // self.model.prompts.longest_token)
            if least >= n_ctx:
                raise too_long(n_ctx, f"at least {least}", "messages")

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        names: Names,
        *,
        tools: Tools = (),
        may_call: Tools | None = None,
        template_options: Mapping[str, Any] = MappingProxyType({}),
        think: Think = None,
        answer: bool = True,
        continues: bool = False,
        **more: Any,
    ) -> Job:
        """Answer messages.

        Args:
            options: of the replies.
            names: how the request spells them, and the messages as ``prompt``.
            tools: that the model is shown.
            may_call: those of them that it may call; all if None.
            template_options, think, answer, continues: see ``TextModel.prompt_of``.
            more: see ``_job``.
        """
        tokens = self.prompt(
            messages,
            names,
            tools=tools,
            template_options=template_options,
            think=think,
            answer=answer,
            continues=continues,
        )
        called = tools if may_call is None else may_call
        return self._job([tokens], {**options, "tools": called}, names, **more)

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], names: Names, *, tools: Tools = (), **more: Any
    ) -> Sequence[int]:
        """Return the token ids of messages, see ``chat``."""
        with _named(names):
            _require_short([tool["function"].get("parameters") for tool in tools], names.get("tools", "tools"))
            return self.model.prompt_of(messages, tools=tools, must_fit=True, **more)

    def continuation(
        self, prompts: Sequence[str | Sequence[int]], options: Mapping[str, Any], names: Names, **more: Any
    ) -> Job:
        """Continue texts or token ids as they are, like ``edge-spec run --raw``; see ``chat``."""
        n_replies, place = len(prompts) * more.get("n", 1), names["prompt"]
        if n_replies > MAX_CHOICES:
            raise bad_value("n", f"{n_replies} replies at once; ask for at most {MAX_CHOICES}")
        try:
            tokens = [*map(self._tokens, prompts)]
        except PromptTooLong as error:
            raise api_error(error, names) from None
        except PromptError as error:
            raise bad_value(place, in_fields(error)) from None
        if not all(tokens):
            raise bad_value(place, "it is empty; give some text to continue")
        return self._job(tokens, {**options, "raw": True}, names, **more)

    def _tokens(self, prompt: str | Sequence[int]) -> Sequence[int]:
        if isinstance(prompt, str):
            return self.model.prompt_of(prompt, raw=True, must_fit=True)
        tokens = self.model.prompts.known(prompt)
        if len(tokens) >= self.model.n_ctx:
            raise PromptTooLong(n_prompt=len(tokens), n_ctx=self.model.n_ctx)
        return tokens

    def _job(
        self,
        prompts: Sequence[Sequence[int]],
        options: Mapping[str, Any],
        names: Names,
        *,
        n: int = 1,
        stream: bool = False,
        speculation: str | None = None,
        notices: Sequence[str] = (),
    ) -> Job:
        """Return the job of prompts.

        Args:
            n: replies to each.
            stream: each piece is sent as it comes.
            speculation: how to draft; as the server does if None.
            notices: what else the sender should be told.
        """
        grammar, schema, stop = options.get("grammar"), options.get("json_schema"), options.get("stop")
        if grammar is not None:
            place = names.get("grammar", "grammar")
            if options.get("tools"):
                raise bad_value(place, "it and tools both say what may be written; give one of them")
            if isinstance(grammar, str) and len(grammar) > _MAX_GRAMMAR:
                n_chars = len(grammar)
                raise bad_value(place, f"{n_chars} characters, and at most {_MAX_GRAMMAR} are read; simplify it")
        if isinstance(stop, list) and len(stop) > MAX_STOPS:
            raise bad_value(names.get("stop", "stop"), f"must have at most {MAX_STOPS} items")
        if schema is not None:
            place = names["json_schema"]
            if not isinstance(schema, Mapping):
                raise bad_value(place, "must be an object")
            _require_short(schema, place)
        if speculation not in (None, "off", "auto", self.model.mode):
            raise bad_value(
                "speculation",
                f"this server drafts by {self.model.mode!r}; ask for that, 'auto' or 'off', or start it with "
                "--speculation",
            )
        limits = {"max_tokens": self.settings.max_tokens}
        asked = cast(ReplyKeywords, {**self.settings.sampling, **limits, **options, "reuse": True})
        with _named(names, has_tools=bool(options.get("tools")), has_schema=schema is not None):
            requests = self.model.requests(prompts, **asked)
        if not stream:
            self._require_room(requests, n)
        return Job(requests=requests, n=n, is_stream=stream, is_plain=speculation == "off", notices=notices)

    def _require_room(self, requests: Sequence[ReplyRequest], n: int) -> None:
        """Raise if a response would exceed the size that is stored for one."""
        n_top, limit = requests[0].options.logprobs, requests[0].options.max_tokens or self.model.n_ctx
        if n_top is None:
            return
        most = MAX_TOLD
        if (left := self._ledger.left_bytes) is not None:
            most = min(most, left // _TOLD_BYTES)
        n_replies = len(requests) * n
        n_tokens = min(limit, self.model.n_ctx - min(len(request.prompt) for request in requests))
        if n_replies * n_tokens * (1 + n_top) > most:
            raise bad_value(
                "n",
                f"{n_replies} replies of up to {n_tokens} tokens with {1 + n_top} log probabilities each are "
                f"{n_replies * n_tokens * (1 + n_top)}, and at most {most} are kept for a response; lower n, "
                "max_tokens or top_logprobs, or set stream",
            )


def options_of(given: Mapping[str, Any], arguments: Mapping[str, str], place: str = "") -> dict[str, Any]:
    """Return those of the fields of a request that are options of replies.

    Args:
        arguments: the names of options by fields.
        place: what stands before these fields.

    Raises:
        ApiError: a value is out of its range.
    """
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name not in arguments or value is None:
            continue
        if wanted := REPLY_OPTIONS[arguments[name]].wanted_instead(value):
            shown = json.dumps(value, ensure_ascii=False)[:64]
            param = place + name
            raise ApiError(400, f"{param} is {shown} and must be {wanted.lower()}", code="invalid_value", param=param)
        options[arguments[name]] = value
    if isinstance(biases := options.get("logit_bias"), Mapping):
        if not all(name.isascii() and name.isdecimal() and len(name) < 10 for name in biases):
            raise bad_value(f"{place}logit_bias", "its names must be token ids")
        options["logit_bias"] = {int(token): bias for token, bias in biases.items()}
    if options.get("top_p") == 0:
        # OpenAI's way to ask for the best token alone.
        options["top_p"] = sys.float_info.min
    return options


@contextmanager
def _named(names: Names, *, has_tools: bool = False, has_schema: bool = False) -> Iterator[None]:
    """Raise errors as those of the fields that are at fault."""
    try:
        yield
    except SettingsError as error:
        if has_schema and error.argument in ("json_schema", "grammar"):
            raise bad_value(names["json_schema"], in_fields(error)) from None
        if has_tools and not error.argument:
            raise ApiError(400, error.message, code="invalid_schema", param=names.get("tools", "tools")) from None
        raise api_error(error, names) from None
    except PromptError as error:
        raise api_error(error, names) from None


def _require_short(schemas: Any, field: str) -> None:
    """Raise if the schemas are too long together."""
    n_chars = len(json.dumps(schemas))
    if n_chars > _MAX_SCHEMAS:
        raise bad_value(
            field, f"schemas of {n_chars} characters, and at most {_MAX_SCHEMAS} are read; shorten or leave out some"
        )


def _least_bytes(message: Any) -> int:
    """Return an estimate of the fewest bytes that a template writes for a message."""
    if not isinstance(message, dict) or message.get("role") == "assistant":
        return 0
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return sum(len(text.strip()) for text in texts if isinstance(text, str))
