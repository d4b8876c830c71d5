"""OpenAI's dialect: chat completions and completions, with fields that other servers share."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from edge_spec.errors import PromptError
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.options import REPLY_OPTIONS
from edge_spec.generation.reply import Reply
from edge_spec.generation.tools.answers import MergedMessage
from edge_spec.generation.tools.calls import ToolCall
from edge_spec.generation.tools.functions import NAME
from edge_spec.sampling import SAMPLER_OPTIONS
from edge_spec.server.dialect import Dialect, json_of, sse
from edge_spec.server.errors import ApiError, Names, bad_value, unsupported
from edge_spec.server.fields import EACH, Fields, parse
from edge_spec.server.jobs import MAX_CHOICES, MAX_STOPS, Job, JobMaker, options_of
from edge_spec.server.models import Models, ServedModel
from edge_spec.server.tokenizing import detokenized, tokenized
from edge_spec.server.told import LOWEST, Spelling, Told, likelihoods, with_logprobs
from edge_spec.server.unknown_fields import notices_of
from edge_spec.server.writing import CHARACTER_BYTES, Work

__all__ = ["OPENAI", "ChatFields", "CompletionFields", "wanted_format"]

_CONSTRAINTS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "regex", "ebnf")
"""Fields of other servers that constrain answers and are not supported here."""

_ANY_OBJECT = {"type": "object"}

_WRAPPER = frozenset(("name", "description", "strict", "schema"))
"""The keys that OpenAI's API puts around a schema."""

_MAX_TOP = 20

_UNLIMITED = _DRAWN = -1
"""The value that means no limit, as in other servers."""

Limit = Literal[-1] | Annotated[int, Field(ge=1)]


class StreamFields(Fields):
    include_usage: bool = False


class FormatFields(Fields):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None
    own_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class ReplyFields(Fields):
    """Fields that completions and chat completions share.

    Fields of ``SamplerSettings`` are taken from the request by their names; what has a name of OpenAI's is here.
    """

    model: str | None = None
    stream: bool = False
    stream_options: StreamFields = StreamFields()
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS), EACH] = Field(default_factory=list)
    seed: int | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field(default_factory=dict)
    response_format: FormatFields | None = None
    # Of other servers.
    json_schema: dict[str, Any] | None = None
    format: Literal["json"] | dict[str, Any] | None = None
    # Ours.
    grammar: str | None = None
    speculation: str | None = None
    token_events: bool = False

    @property
    def own_seed(self) -> int | None:
        """The seed; None for a random one."""
        return None if self.seed == _DRAWN else self.seed

    def limit(self, otherwise: int | None) -> int | None:
        """Return the most tokens of a reply; None for as many as fit.

        Args:
            otherwise: that of a request that says nothing.
        """
        limit = self.max_completion_tokens or self.max_tokens or otherwise
        return None if limit == _UNLIMITED else limit


class CompletionFields(ReplyFields):
    prompt: (
        str
        | Annotated[list[str], EACH]
        | Annotated[list[int], EACH]
        | Annotated[list[Annotated[list[int], EACH]], EACH]
    )
    logprobs: Annotated[int, Field(ge=0, le=_MAX_TOP)] | None = None
    echo: bool = False
    suffix: str = ""
    best_of: int | None = None


class FunctionFields(Fields):
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolFields(Fields):
    type: Literal["function"]
    function: FunctionFields


class CalledFields(Fields):
    name: str
    arguments: str | dict[str, Any] = "{}"


class CallFields(Fields):
    id: str = ""
    function: CalledFields


class PartFields(Fields):
    type: str
    text: str | None = None
    refusal: str | None = None


class MessageFields(Fields):
    """A message as clients send it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[PartFields], EACH] | None = None
    name: str | None = None
    tool_calls: Annotated[list[CallFields], EACH] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class NamedFields(Fields):
    name: str


class ChoiceFields(Fields):
    type: Literal["function"] = "function"
    function: NamedFields


class AllowedFields(Fields):
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[ChoiceFields], EACH]


class AllowedChoiceFields(Fields):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedFields


def _kind_of_choice(given: Any) -> str:
    """Return the branch of a ``tool_choice``, so that only one branch reports errors."""
    if not isinstance(given, Mapping | Fields):
        return "a word"
    kind = given.get("type") if isinstance(given, Mapping) else getattr(given, "type", None)
    return "some functions" if kind == "allowed_tools" else "a function"


class ChatFields(ReplyFields):
    messages: Annotated[list[MessageFields], Field(min_length=1), EACH]
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=_MAX_TOP)] = 0
    tools: Annotated[list[ToolFields], EACH] = Field(default_factory=list)
    tool_choice: Annotated[
        Annotated[Literal["none", "auto", "required"], Tag("a word")]
        | Annotated[ChoiceFields, Tag("a function")]
        | Annotated[AllowedChoiceFields, Tag("some functions")],
        Discriminator(_kind_of_choice),
    ] = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


_ARGUMENTS = {
    option.field: name
    for name, option in REPLY_OPTIONS.items()
    if option.field is not None and option.field not in CompletionFields.model_fields.keys() - {"logit_bias"}
}
"""Options of replies that OpenAI's API lacks, by their fields."""


def _completion(jobs: JobMaker, body: dict[str, Any]) -> _Response:
    """Continue texts as they are, like ``edge-spec run --raw``."""
    asked = parse(CompletionFields, body)
    unknown = {"echo": asked.echo, "suffix": asked.suffix, "best_of": asked.best_of not in (None, asked.n)}
    _refuse(body, (name for name, is_asked in unknown.items() if is_asked))
    prompt: Any = asked.prompt
    if isinstance(prompt, list) and (not prompt or isinstance(prompt[0], int)):
        if not prompt:
            raise bad_value("prompt", "it is empty; give some text to continue")
        prompt = [prompt]
    prompts = prompt if isinstance(prompt, list) else [prompt]
    options, names = _options(jobs, asked, body, asked.logprobs)
    job = jobs.continuation(prompts, options, {**names, "prompt": "prompt"}, **_more(asked, body))
    return _Response(jobs, job, asked, "text_completion", "text_completion", "cmpl")


def _chat(jobs: JobMaker, body: dict[str, Any]) -> _Response:
    """Answer messages."""
    asked = parse(ChatFields, body)
    _refuse(body, (name for name in ("functions", "function_call") if body.get(name)))
    if asked.top_logprobs and not asked.logprobs:
        raise bad_value("top_logprobs", "needs logprobs to be true")
    options, names = _options(jobs, asked, body, asked.top_logprobs if asked.logprobs else None)
    tools = [tool.model_dump() for tool in asked.tools] if asked.tool_choice != "none" else []
    may_call, options["tool_choice"] = _callable(asked, tools)
    options["parallel_tool_calls"] = asked.parallel_tool_calls
    more = _more(asked, body)
    job = jobs.chat(
        _messages(asked.messages),
        options,
        names,
        tools=tools,
        may_call=may_call,
        template_options=asked.chat_template_kwargs,
        think=jobs.think(asked.reasoning_effort, "reasoning_effort", more["notices"]),
        answer=asked.add_generation_prompt is not False,
        continues=_continues(asked),
        **more,
    )
    return _Response(jobs, job, asked, "chat.completion", "chat.completion.chunk", "chatcmpl")


def _options(
    jobs: JobMaker, asked: ReplyFields, body: dict[str, Any], logprobs: int | None
) -> tuple[dict[str, Any], Names]:
    """Return the options of the replies, and the fields that some of them have come from."""
    options = options_of(body, _ARGUMENTS)
    form, field = wanted_format(asked)
    limit = asked.limit(jobs.settings.max_tokens)
    options |= {"max_tokens": limit, "stop": asked.stop, "seed": asked.own_seed, "logprobs": logprobs, **form}
    return options, {"prompt": "messages", "json_schema": field}


def _more(asked: ReplyFields, body: dict[str, Any]) -> dict[str, Any]:
    """Return what else a job is made of."""
    notices = notices_of(body, [*type(asked).model_fields, *_ARGUMENTS])
    return {"n": asked.n, "stream": asked.stream, "speculation": asked.speculation, "notices": notices}


def _refuse(body: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in (*names, *(name for name in _CONSTRAINTS if body.get(name) is not None)):
        raise unsupported(name)


def wanted_format(asked: ReplyFields) -> tuple[dict[str, Any], str]:
    """Return the option that says what form the answer has, if one is wanted, and the field that asks for it.

    Raises:
        ApiError: it asks for two.
    """
    wanted = asked.response_format
    given = {
        "response_format": wanted if wanted is not None and wanted.type != "text" else None,
        "json_schema": asked.json_schema,
        "format": asked.format,
        "grammar": asked.grammar,
    }
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise bad_value(names[1], f"it and {names[0]} both say what may be written; give one of them")
    if asked.grammar is not None:
        return {"grammar": asked.grammar}, "grammar"
    if asked.json_schema is not None:
        return _unwrapped(asked.json_schema, "json_schema")
    if asked.format is not None:
        return {"json_schema": _ANY_OBJECT if asked.format == "json" else asked.format}, "format"
    if wanted is None:
        return {}, ""
    places = {"response_format.json_schema": wanted.json_schema, "response_format.schema": wanted.own_schema}
    schemas = [(schema, place) for place, schema in places.items() if schema is not None]
    if wanted.type == "text":
        if schemas:
            raise bad_value("response_format.type", "it is 'text' beside a schema; for JSON give 'json_schema'")
        return {}, ""
    if len(schemas) > 1:
        raise bad_value(schemas[1][1], f"it and {schemas[0][1]} are both schemas; give one of them")
    if not schemas and wanted.type == "json_schema":
        raise bad_value("response_format.json_schema", "this field is needed")
    return _unwrapped(*schemas[0]) if schemas else ({"json_schema": _ANY_OBJECT}, "response_format")


def _unwrapped(given: Mapping[str, Any], field: str) -> tuple[dict[str, Any], str]:
    """Return a schema, with or without OpenAI's names around it, and its field."""
    if given.keys() <= _WRAPPER:
        inner = given.get("schema")
        return {"json_schema": inner if inner is not None else {}}, f"{field}.schema"
    return {"json_schema": given}, field


def _callable(asked: ChatFields, tools: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return those of the tools that may be called, and whether one has to be."""
    choice = asked.tool_choice
    if isinstance(choice, str):
        return tools, choice
    is_one = isinstance(choice, ChoiceFields)
    chosen = [choice] if isinstance(choice, ChoiceFields) else choice.allowed_tools.tools
    named = {each.function.name for each in chosen}
    may_call = [tool for tool in tools if tool["function"]["name"] in named]
    if not named <= {tool["function"]["name"] for tool in tools} or not named:
        place = "tool_choice" if is_one else "tool_choice.allowed_tools.tools"
        raise bad_value(place, "it names a function that is not among tools" if named else "it names no function")
    return may_call, "required" if isinstance(choice, ChoiceFields) else choice.allowed_tools.mode


def _continues(asked: ChatFields) -> bool:
    """Return whether the last message is to be continued."""
    last, place = asked.messages[-1], f"messages[{len(asked.messages) - 1}]"
    if asked.continue_final_message:
        if asked.add_generation_prompt:
            raise bad_value("add_generation_prompt", "it begins another message; leave it out, or set it to false")
        if last.role != "assistant" or last.tool_calls or not last.content:
            raise bad_value("continue_final_message", f"{place} must be the assistant's, with a text to continue")
    return asked.continue_final_message


def _messages(messages: Sequence[MessageFields]) -> list[dict[str, Any]]:
    """Return the messages as Python has them: text as one string; ``developer`` is ``system``.

    Raises:
        ApiError: a part is not text, or a result belongs to a call that was not made.
    """
    made: list[dict[str, Any]] = []
    ids: set[str | None] = set()
    for place, message in enumerate(messages):
        param = f"messages[{place}]"
        role = "system" if message.role == "developer" else message.role
        if role == "user" and message.content is None:
            raise ApiError(400, f"{param}.content: this field is needed", code="invalid_value", param=param)
        values: dict[str, Any] = {"role": role, "content": _content(message.content, f"{param}.content")}
        if message.name is not None:
            values["name"] = message.name
        if role == "assistant" and message.reasoning_content:
            values["reasoning_content"] = message.reasoning_content
        if role == "assistant" and message.tool_calls:
            values["tool_calls"] = calls = [call.model_dump() for call in message.tool_calls]
            for number, call in enumerate(calls):
                try:
                    ids.add(ToolCall.from_json(call).id)
                except PromptError:
                    field = f"{param}.tool_calls[{number}].function.arguments"
                    raise bad_value(field, "a JSON object is needed, written as a string") from None
        if role == "tool":
            if message.tool_call_id not in ids:
                raise bad_value(
                    f"{param}.tool_call_id",
                    "no earlier message has a call with this id; send the assistant's message with its tool_calls "
                    "before their results",
                )
            values["tool_call_id"] = message.tool_call_id
        made.append(values)
    return made


def _content(content: str | Sequence[PartFields] | None, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for number, part in enumerate(content):
        text = part.text if part.type == "text" else part.refusal if part.type == "refusal" else None
        if text is None:
            shown = json.dumps(part.type[:32])
            raise ApiError(
                400,
                f'{param}[{number}].type: {shown} is not read here; send parts of type "text"',
                code="unsupported_content",
                param=f"{param}[{number}].type",
            )
        texts.append(text)
    return "\n".join(texts)


class _Choice:
    """One reply of a response.

    Args:
        number: which one it is.
    """

    def __init__(self, jobs: JobMaker, job: Job, asked: ReplyFields, number: int) -> None:
        self._prompts = jobs.model.prompts
        self._number = number
        self._has_logprobs = job.requests[0].options.logprobs is not None
        self._has_events = asked.token_events
        self._is_chat = isinstance(asked, ChatFields)
        self._reader = job.reader(number)
        self._message = MergedMessage()
        self._text, self._n_chars = StringIO(), 0
        self._told = Told()
        self._has_begun = False

    def chunk(self, events: list[TokenEvent], answer: Reply | None) -> list[dict[str, Any]]:
        """Return the choices of chunks for some tokens, or for the end of the answer."""
        contents = self._contents(events, answer)
        if not contents and events and (self._has_logprobs or self._has_events):
            contents = [{}]
        if self._is_chat:
            first = [] if self._has_begun else [self._choice({"delta": {"role": "assistant", "content": ""}})]
            found = first + [self._choice({"delta": delta}, events * (not n)) for n, delta in enumerate(contents)]
        else:
            found = [self._choice(content, events) for content in contents]
        self._has_begun = True
        self._n_chars += sum(len(event.text) for event in events)
        if answer is not None:
            found.append(self._choice({"delta": {}} if self._is_chat else {"text": ""}, answer=answer))
        return found

    def keep(self, events: list[TokenEvent], answer: Reply | None) -> int:
        """Store tokens for the whole response; return how many bytes that takes."""
        contents = self._contents(events, answer)
        for content in contents:
            self._text.write(content.get("text", ""))
            self._message.add(content)
        n_bytes = self._told.add(self._choice({}, events)) if self._has_logprobs or self._has_events else 0
        n_chars = sum(len(event.text) for event in events)
        self._n_chars += n_chars
        return n_bytes + CHARACTER_BYTES * n_chars

    def whole(self, answer: Reply) -> Iterator[bytes | bytearray]:
        """Yield the choice of the whole response in JSON."""
        content = {"message": self._message.message()} if self._is_chat else {"text": self._text.getvalue()}
        return self._told.within(self._choice(content, answer=answer))

    def _contents(self, events: list[TokenEvent], answer: Reply | None) -> list[dict[str, Any]]:
        """Return what tokens add to a text or a message."""
        if self._is_chat:
            return self._reader.deltas(events, answer)
        return [{"text": "".join(event.text for event in events)}] if events else []

    def _choice(
        self, content: dict[str, Any], events: Sequence[TokenEvent] = (), answer: Reply | None = None
    ) -> dict[str, Any]:
        logprobs, spelling = None, self._prompts.spelling
        if self._has_logprobs:
            # OpenAI's responses omit the token that ends an answer.
            told = [event for event in events if event.id is None or not self._prompts.ends(event.id)]
            if self._is_chat:
                logprobs = {"content": likelihoods(told, spelling)}
            else:
                logprobs = _completion_logprobs(told, spelling, offset=self._n_chars)
        ended = _ending(answer, has_calls=self._reader.has_calls)
        own = {"token_events": _token_events(events, spelling)} if self._has_events else {}
        return {"index": self._number, **content, "logprobs": logprobs, **ended, **own}


class _Response:
    """The replies to a request, as OpenAI's clients read them.

    Args:
        kind, kind_of_chunk: the ``object`` that it is.
        prefix: what its id begins with.
    """

    def __init__(
        self, jobs: JobMaker, job: Job, asked: ReplyFields, kind: str, kind_of_chunk: str, prefix: str
    ) -> None:
        self.job = job
        self._model = jobs.model
        self._includes_usage = asked.stream_options.include_usage
        self._choices = [_Choice(jobs, job, asked, number) for number in range(len(job.requests) * job.n)]
        self._common = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind_of_chunk if job.is_stream else kind,
            "created": int(time.time()),
            "model": jobs.settings.name,
            # Equal fingerprints, prompts, settings and seeds give equal text.
            "system_fingerprint": jobs.model.profile.name,
        }

    async def whole(self, work: Work) -> list[bytes | bytearray]:
        async for number, events, answer in work:
            work.kept.grow(self._choices[number].keep(events, answer))
        pieces: list[bytes | bytearray] = [json_of({**self._common, **self._ending(work)})[:-1]]
        for number, (choice, answer) in enumerate(zip(self._choices, work.answers, strict=True)):
            pieces.append(b"," if number else b',"choices":[')
            pieces += choice.whole(answer)
        return [*pieces, b"]}"]

    async def chunks(self, work: Work) -> AsyncIterator[bytes]:
        # As OpenAI does: with a usage at the end, the other chunks have a usage of null.
        more: dict[str, Any] = {"usage": None} if self._includes_usage else {}
        async for number, events, answer in work:
            for choice in self._choices[number].chunk(events, answer):
                yield sse({**self._common, "choices": [choice], **more})
        if self._includes_usage:
            yield sse({**self._common, "choices": [], **self._ending(work)})
        yield b"data: [DONE]\n\n"

    def _ending(self, work: Work) -> dict[str, Any]:
        """Return the numbers of tokens, and the fields that OpenAI's form lacks."""
        done = [answer.statistics for answer in work.answers]
        n_prompt, n_written = (
            sum(len(request.prompt) for request in self.job.requests),
            sum(each.tokens for each in done),
        )
        # The first of several replies to a prompt tells what of it was not read.
        n_reused = sum(answer.n_reused for answer in work.answers[:: self.job.n])
        usage = {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_written,
            "total_tokens": n_prompt + n_written,
            "prompt_tokens_details": {"cached_tokens": n_reused},
            "drafted_tokens": sum(each.drafted for each in done),
            "accepted_tokens": sum(each.accepted for each in done),
            "rounds": sum(each.rounds for each in done),
        }
        return {"usage": usage, "edge_spec": self.job.facts(self._model, work.answers, work.notices)}


def _ending(answer: Reply | None, *, has_calls: bool = False) -> dict[str, Any]:
    """Return OpenAI's ``finish_reason`` and our ``ended_by``, which knows more reasons.

    None if it has not.
    """
    if answer is None:
        return {"finish_reason": None}
    reason = "length"
    if answer.finish_reason in ("eos", "stop"):
        reason = "tool_calls" if has_calls else "stop"
    return {"finish_reason": reason, "ended_by": answer.finish_reason}


def _completion_logprobs(events: Iterable[TokenEvent], spelling: Spelling, *, offset: int) -> dict[str, Any]:
    """Return the same, as completions have them.

    Args:
        offset: how many characters of the text come before.
    """
    found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for event, token, logprob in with_logprobs(events):
        found["tokens"].append(_text(spelling(token)))
        found["token_logprobs"].append(max(logprob, LOWEST))
        found["top_logprobs"].append({_text(spelling(each)): max(x, LOWEST) for each, x in event.top.items()})
        found["text_offset"].append(offset)
        offset += len(event.text)
    return found


def _token_events(events: Iterable[TokenEvent], spelling: Spelling) -> list[dict[str, Any]]:
    """Return our events: who drafted each token, and its log probability if ``logprobs`` asks for it."""
    return [
        {
            "id": event.id,
            "text": event.text,
            "drafted_by": event.drafted_by,
            "round": event.round,
            "logprob": None if event.logprob is None else max(event.logprob, LOWEST),
            "top": [
                {"id": token, "text": _text(spelling(token)), "logprob": max(logprob, LOWEST)}
                for token, logprob in event.top.items()
            ],
        }
        for event in events
    ]


def _text(raw: bytes) -> str:
    """Return the text of a token; if it is part of a character, its bytes, as OpenAI writes them."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _models(models: Models, served: ServedModel | None) -> dict[str, Any]:
    return {"object": "list", "data": [_model(models, each) for each, _ in models.listed()]}


def _model(models: Models, served: ServedModel | None) -> dict[str, Any]:
    assert served is not None
    described = {"id": served.name, "object": "model", "created": models.started, "owned_by": "edge-spec"}
    described["loaded"] = (model := served.model) is not None
    if model is None:
        file = models.file(served)
        return {**described, "trained_context_length": file.n_ctx_train or None if file is not None else None}
    settings = model.sampler_settings(seed=0, **models.settings.sampling)
    return {
        **described,
        "context_length": model.n_ctx,
        # Those of requests that give none.
        "sampling": {
            name: getattr(settings, name) for name, option in SAMPLER_OPTIONS.items() if not option.is_repeatable
        },
        "speculation": model.mode,
        "identity": model.identity,
        "profile": {"name": model.profile.name, **dict(model.profile.facts)},
    }


def _error(failure: ApiError) -> dict[str, Any]:
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(failure.status, "invalid_request_error")
    kind = "server_error" if failure.status >= 500 else kind
    return {"error": {"message": failure.message, "type": kind, "param": failure.param, "code": failure.code}}


OPENAI = Dialect(
    begins="/",
    writes={"/v1/chat/completions": _chat, "/v1/completions": _completion},
    converts={"/tokenize": tokenized, "/detokenize": detokenized},
    tells={"/v1/models": _models, "/v1/models/{name:path}": _model},
    error=_error,
    failed=lambda failure: sse(_error(failure)),
)
