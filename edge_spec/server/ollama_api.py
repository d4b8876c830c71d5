"""ollama's dialect: chat, generate, and what its clients ask about models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from math import isinf
from time import perf_counter
from typing import Annotated, Any, Literal

from pydantic import Field

from edge_spec.generation.events import TokenEvent
from edge_spec.generation.options import REPLY_OPTIONS
from edge_spec.generation.thoughts import marks_of
from edge_spec.generation.tools.answers import MergedMessage
from edge_spec.generation.tools.calls import whole_calls
from edge_spec.generation.tools.functions import NAME
from edge_spec.models import ModelFile
from edge_spec.sampling import SamplerSettings
from edge_spec.server.dialect import Dialect, Response, json_of
from edge_spec.server.errors import ApiError, Names, bad_value, unsupported
from edge_spec.server.fields import EACH, Fields, parse
from edge_spec.server.jobs import Job, JobMaker, options_of
from edge_spec.server.models import Models, ServedModel
from edge_spec.server.settings import duration_s
from edge_spec.server.told import Told, likelihoods
from edge_spec.server.unknown_fields import notices_of
from edge_spec.server.writing import CHARACTER_BYTES, Work

__all__ = ["OLLAMA"]

_VERSION = "0.12.11"
"""The version of ollama whose requests and responses these are: clients look for a least one."""

_ARGUMENTS: Mapping[str, str] = {
    **{option.field: name for name, option in REPLY_OPTIONS.items() if option.field not in (None, "logprobs")},
    "num_predict": "max_tokens",
    "repeat_last_n": "penalty_window",
}
"""Options of replies by their names among ``options``: those of ollama, and our own."""

_NAMES: Names = {
    **{name: f"options.{field}" for field, name in _ARGUMENTS.items()},
    "prompt": "messages",
    "json_schema": "format",
}

_LOADING = frozenset(("num_batch", "num_gpu", "main_gpu", "low_vram", "use_mmap", "use_mlock", "num_thread", "numa"))
"""Options for loading a model, which change no text."""

_MAX_TOP = 20
_FOREVER = "9999-12-31T23:59:59Z"


class CalledFields(Fields):
    name: Annotated[str, Field(pattern=NAME)]
    arguments: dict[str, Any] = Field(default_factory=dict)


class CallFields(Fields):
    id: str | None = None
    function: CalledFields


class MessageFields(Fields):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[Any] = Field(default_factory=list)
    tool_calls: Annotated[list[CallFields], EACH] = Field(default_factory=list)
    tool_name: str | None = None
    tool_call_id: str | None = None


class FunctionFields(Fields):
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolFields(Fields):
    type: Literal["function"] = "function"
    function: FunctionFields


class AskedFields(Fields):
    model: str | None = None
    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] = ""
    options: dict[str, Any] = Field(default_factory=dict)
    think: bool | str | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=_MAX_TOP)] = 0


class ChatFields(AskedFields):
    messages: Annotated[list[MessageFields], EACH] = Field(default_factory=list)
    tools: Annotated[list[ToolFields], EACH] = Field(default_factory=list)


class GenerateFields(AskedFields):
    prompt: str = ""
    system: str | None = None
    raw: bool = False


class ModelFields(Fields):
    model: str | None = None
    name: str | None = None
    verbose: bool = False


def _chat(jobs: JobMaker, body: dict[str, Any]) -> Response | dict[str, Any]:
    """Answer messages."""
    began, asked = perf_counter(), parse(ChatFields, body)
    if not asked.messages:
        return {**_envelope(jobs), "message": {"role": "assistant", "content": ""}, **_LOADED}
    options, more = _options(jobs, asked, body)
    job = jobs.chat(
        _messages(asked.messages), options, _NAMES, tools=[tool.model_dump() for tool in asked.tools], **more
    )
    return _Response(jobs, job, began, is_chat=True)


def _generate(jobs: JobMaker, body: dict[str, Any]) -> Response | dict[str, Any]:
    """Answer a text, or continue it if it is ``raw``."""
    began, asked = perf_counter(), parse(GenerateFields, body)
    for name in ("suffix", "template", "context", "images"):
        if body.get(name):
            raise unsupported(name)
    if not asked.prompt:
        return {**_envelope(jobs), "response": "", **_LOADED}
    options, more = _options(jobs, asked, body)
    names = {**_NAMES, "prompt": "prompt"}
    if asked.raw:
        for name in ("system", "think"):
            if body.get(name) is not None:
                raise bad_value(name, "a raw prompt is continued as it is; write it into the prompt")
        del more["think"]
        job = jobs.continuation([asked.prompt], options, names, **more)
    else:
        messages = [{"role": "system", "content": asked.system}] if asked.system else []
        job = jobs.chat([*messages, {"role": "user", "content": asked.prompt}], options, names, **more)
    return _Response(jobs, job, began, is_chat=False)


def _options(jobs: JobMaker, asked: AskedFields, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the replies, and what else a job is made of."""
    given, n_ctx = dict(asked.options), jobs.model.n_ctx
    notices = notices_of(body, type(asked).model_fields)
    known = {*_ARGUMENTS, *_LOADING, "num_ctx"}
    notices += [f"options.{notice}" for notice in notices_of(given, known)]
    if given.get("num_ctx") not in (None, n_ctx):
        notices.append(f"options.num_ctx: this server has a context of {n_ctx} tokens, whatever a request says")
    is_unlimited = given.get("num_predict") in (-1, -2)
    if is_unlimited:
        del given["num_predict"]
    stop = given.pop("stop", None)
    options = options_of(given, _ARGUMENTS, "options.")
    if is_unlimited:
        options["max_tokens"] = None
    if stop is not None:
        options["stop"] = stop
    if asked.format:
        options["json_schema"] = {"type": "object"} if asked.format == "json" else asked.format
    if asked.logprobs:
        options["logprobs"] = asked.top_logprobs
    elif asked.top_logprobs:
        raise bad_value("top_logprobs", "needs logprobs to be true")
    think = jobs.think(asked.think, "think", notices)
    return options, {"think": think, "stream": asked.stream, "notices": notices}


def _messages(messages: Sequence[MessageFields]) -> list[dict[str, Any]]:
    """Return the messages as Python has them: results belong to calls by their ids, or else by names and order."""
    made: list[dict[str, Any]] = []
    calls: dict[str, str] = {}
    for place, message in enumerate(messages):
        param = f"messages[{place}]"
        if message.images:
            raise ApiError(400, f"{param}.images: this model reads text only", code="unsupported_content", param=param)
        values: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "assistant":
            if message.thinking:
                values["reasoning_content"] = message.thinking
            if message.tool_calls:
                called = {call.id or f"call_{place}_{n}": call.function for n, call in enumerate(message.tool_calls)}
                values["tool_calls"] = [{"id": each, "function": called[each].model_dump()} for each in called]
                calls |= {each: function.name for each, function in called.items()}
        if message.role == "tool":
            named = [each for each, name in calls.items() if message.tool_name in (None, name)]
            found = message.tool_call_id or next(iter(named), None)
            if found not in calls:
                raise bad_value(param, "no earlier message has a call that it is the result of; send that first")
            del calls[found]
            values["tool_call_id"] = found
        made.append(values)
    return made


_LOADED = {"done": True, "done_reason": "load"}
"""The answer to a request without a prompt, which only has the model loaded: it is."""


class _Response:
    """The answer to a request, as ollama's clients read it.

    Args:
        began: when the request was read, by the clock of ``perf_counter``.
    """

    def __init__(self, jobs: JobMaker, job: Job, began: float, *, is_chat: bool) -> None:
        self.job = job
        self._jobs = jobs
        self._began = began
        self._is_chat = is_chat
        self._reader = job.reader(0)
        self._has_logprobs = job.requests[0].options.logprobs is not None

    async def whole(self, work: Work) -> list[bytes | bytearray]:
        message, told = MergedMessage(), Told()
        async for _, events, answer in work:
            n_bytes = CHARACTER_BYTES * sum(len(event.text) for event in events)
            work.kept.grow(n_bytes + told.add(self._likelihoods(events)))
            for delta in self._reader.deltas(events, answer):
                message.add(delta)
        return [*told.within({**self._said(message.message()), **self._likelihoods([]), **self._ending(work)})]

    async def chunks(self, work: Work) -> AsyncIterator[bytes]:
        called = MergedMessage()
        async for _, events, answer in work:
            said = {"content": ""}
            for delta in self._reader.deltas(events, answer):
                called.add({name: part for name, part in delta.items() if name == "tool_calls"})
                for name in delta.keys() - {"tool_calls"}:
                    said[name] = said.get(name, "") + delta[name]
            likely = self._likelihoods(events)
            if said != {"content": ""} or likely.get("logprobs"):
                yield _line({**self._said(said), **likely, "done": False})
        # Their form has no room for arguments in pieces.
        calls = {**called.message(), "content": ""}
        if "tool_calls" in calls:
            yield _line({**self._said(calls), "done": False})
        yield _line({**self._said({"content": ""}), **self._ending(work)})

    def _said(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a response that says some of a message, or all of it."""
        thinking = {"thinking": message["reasoning_content"]} if message.get("reasoning_content") else {}
        content = message["content"] or ""
        if not self._is_chat:
            return {**_envelope(self._jobs), "response": content, **thinking}
        calls = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in whole_calls(message.get("tool_calls", ()))
        ]
        called = {"tool_calls": calls} if calls else {}
        return {**_envelope(self._jobs), "message": {"role": "assistant", "content": content, **thinking, **called}}

    def _likelihoods(self, events: Sequence[TokenEvent]) -> dict[str, Any]:
        if not self._has_logprobs:
            return {}
        prompts = self._jobs.model.prompts
        told = [event for event in events if event.id is None or not prompts.ends(event.id)]
        return {"logprobs": likelihoods(told, prompts.spelling)}

    def _ending(self, work: Work) -> dict[str, Any]:
        """Return why the answer has ended, numbers of tokens, and measured times in nanoseconds."""
        (answer,) = work.answers
        done, facts = answer.statistics, self.job.facts(self._jobs.model, work.answers, work.notices)
        return {
            "done": True,
            "done_reason": "length" if answer.is_cut else "stop",
            "total_duration": _ns(perf_counter() - self._began),
            # What is measured begins when the model is open.
            "load_duration": 0,
            "prompt_eval_count": len(answer.prompt),
            "prompt_eval_duration": _ns(done.prefill_s),
            "eval_count": done.tokens,
            "eval_duration": _ns(done.decode_s),
            "edge_spec": {**facts, "ended_by": answer.finish_reason},
        }


def _envelope(jobs: JobMaker) -> dict[str, Any]:
    return {"model": jobs.settings.name, "created_at": _time(datetime.now(UTC))}


def _tags(models: Models, served: ServedModel | None) -> dict[str, Any]:
    return {"models": [_described(models, each, file) for each, file in models.listed()]}


def _running(models: Models, served: ServedModel | None) -> dict[str, Any]:
    return {"models": [_held(models, each) for each in models.open]}


def _held(models: Models, served: ServedModel) -> dict[str, Any]:
    model = served.model
    if model is None:
        return _described(models, served, models.file(served))
    return {
        **_described(models, served, model.file),
        "size": model.ledger.held_bytes,
        "size_vram": 0,
        "context_length": model.n_ctx,
        "expires_at": _FOREVER if isinf(served.idle_s) else _time(datetime.now(UTC) + timedelta(seconds=served.idle_s)),
    }


def _version(models: Models, served: ServedModel | None) -> dict[str, Any]:
    return {"version": _VERSION}


def _described(models: Models, served: ServedModel, file: ModelFile | None) -> dict[str, Any]:
    # Equal ones write equal texts.
    wrote = served.profile or (file.fingerprint if file is not None else "")
    return {
        "name": served.name,
        "model": served.name,
        "modified_at": _time(datetime.fromtimestamp(models.started, UTC)),
        "size": file.weight_bytes if file is not None else 0,
        "digest": sha256(wrote.encode()).hexdigest(),
        "details": _details(file),
    }


def _details(file: ModelFile | None) -> dict[str, Any]:
    n_params, family = (file.n_params, file.architecture) if file is not None else (0, "")
    n, unit = (n_params / 1e9, "B") if n_params >= 1e9 else (n_params / 1e6, "M")
    return {
        "parent_model": "",
        "format": file.path.suffix.removeprefix(".") if file is not None else "",
        "family": family,
        "families": [family],
        "parameter_size": f"{n:.1f}{unit}",
        "quantization_level": file.quantization if file is not None else "",
    }


def _show(models: Models, served: ServedModel, body: dict[str, Any]) -> dict[str, Any]:
    parse(ModelFields, body)
    file = models.file(served)
    template = (file.chat_template if file is not None else "") or ""
    marks = marks_of(template)
    settings = {**(SamplerSettings.valid(file.sampling) if file is not None else {}), **models.settings.sampling}
    family = file.architecture if file is not None else ""
    return {
        "modified_at": _time(datetime.fromtimestamp(models.started, UTC)),
        "modelfile": "",
        "parameters": "\n".join(f"{name} {value}" for name, value in settings.items()),
        "template": template,
        "details": _details(file),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": file.n_params if file is not None else 0,
            f"{family}.context_length": file.n_ctx_train if file is not None else 0,
        },
        "capabilities": ["completion", *["tools"] * bool(template), *["thinking"] * (marks.opening in template)],
    }


def _keep_alive(body: dict[str, Any]) -> float | None:
    """Return for how many seconds a model is to stay open, see ``duration_s``.

    Raises:
        ApiError: it is no duration.
    """
    value = body.get("keep_alive")
    try:
        return None if value is None else duration_s(value)
    except ValueError:
        raise bad_value("keep_alive", 'it must be a number of seconds, or a duration such as "5m"') from None


def _unloaded(served: ServedModel, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the response to a request that only wants its model closed; None to any other."""
    if body.get("messages") or body.get("prompt") or _keep_alive(body) != 0:
        return None
    said: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if "messages" in body else {"response": ""}
    return {"model": served.name, "created_at": _time(datetime.now(UTC)), **said, "done": True, "done_reason": "unload"}


def _time(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _line(value: dict[str, Any]) -> bytes:
    return json_of(value) + b"\n"


def _error(failure: ApiError) -> dict[str, Any]:
    return {"error": failure.message}


OLLAMA = Dialect(
    begins="/api/",
    writes={"/api/chat": _chat, "/api/generate": _generate},
    describes={"/api/show": _show},
    tells={"/api/tags": _tags, "/api/ps": _running, "/api/version": _version},
    error=_error,
    failed=lambda failure: _line(_error(failure)),
    media_type="application/x-ndjson",
    # White space before a line of JSON, which has no comments.
    comment=lambda said: b" ",
    streams=True,
    keep_alive=_keep_alive,
    unloaded=_unloaded,
)
