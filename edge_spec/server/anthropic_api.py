"""Anthropic's dialect: messages."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from edge_spec.generation.options import REPLY_OPTIONS
from edge_spec.generation.thinking import Think
from edge_spec.generation.tools.answers import MergedMessage
from edge_spec.generation.tools.calls import whole_calls
from edge_spec.generation.tools.functions import NAME
from edge_spec.server.dialect import Dialect, json_of, sse
from edge_spec.server.errors import ApiError, Names, bad_value
from edge_spec.server.fields import EACH, Fields, parse
from edge_spec.server.jobs import Job, JobMaker, options_of
from edge_spec.server.unknown_fields import notices_of
from edge_spec.server.writing import CHARACTER_BYTES, Work

__all__ = ["ANTHROPIC"]

_NAMES: Names = {
    "prompt": "messages",
    "max_tokens": "max_tokens",
    "stop": "stop_sequences",
    "json_schema": "output_config.format.schema",
}

_CALL, _TOOL_USE = "call_", "toolu_"
"""What ids of calls begin with, here and in this dialect."""


class BlockFields(Fields):
    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[BlockFields], EACH] | None = None
    is_error: bool = False


class MessageFields(Fields):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[BlockFields], EACH]


class ToolFields(Fields):
    type: str = "custom"
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ChoiceFields(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingFields(Fields):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class FormatFields(Fields):
    type: Literal["json_schema"]
    own_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputFields(Fields):
    format: FormatFields | None = None
    effort: str | None = None


class CountFields(Fields):
    model: str | None = None
    messages: Annotated[list[MessageFields], Field(min_length=1), EACH]
    system: str | Annotated[list[BlockFields], EACH] | None = None
    tools: Annotated[list[ToolFields], EACH] = Field(default_factory=list)
    tool_choice: ChoiceFields = ChoiceFields(type="auto")
    thinking: ThinkingFields | None = None
    output_config: OutputFields = OutputFields()


class AskedFields(CountFields):
    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[list[str], EACH] = Field(default_factory=list)
    stream: bool = False


_ARGUMENTS = {
    option.field: name for name, option in REPLY_OPTIONS.items() if option.field not in (None, "stop", "logprobs")
}
"""Options of replies, by their fields; this dialect has its own for the others."""


def _write(jobs: JobMaker, body: dict[str, Any]) -> _Response:
    """Answer messages."""
    asked = parse(AskedFields, body)
    options = {**options_of(body, _ARGUMENTS), "stop": asked.stop_sequences}
    notices = notices_of(body, [*AskedFields.model_fields, *map(str, _ARGUMENTS)])
    tools, may_call, options["tool_choice"] = _tools(asked)
    options["parallel_tool_calls"] = not asked.tool_choice.disable_parallel_tool_use
    if asked.output_config.format is not None:
        options["json_schema"] = asked.output_config.format.own_schema
    job = jobs.chat(
        _messages(asked, notices),
        options,
        _NAMES,
        tools=tools,
        may_call=may_call,
        think=_think(jobs, asked, notices),
        continues=_continues(asked),
        stream=asked.stream,
        notices=notices,
    )
    return _Response(jobs, job)


def _count(jobs: JobMaker, body: dict[str, Any]) -> dict[str, Any]:
    """Return how many tokens a prompt has."""
    asked = parse(CountFields, body)
    notices: list[str] = []
    think, continues = _think(jobs, asked, notices), _continues(asked)
    tools, *_ = _tools(asked)
    messages = _messages(asked, notices)
    tokens = jobs.prompt(messages, _NAMES, tools=tools, think=think, continues=continues)
    return {"input_tokens": len(tokens)}


def _tools(asked: CountFields) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Return the tools that the model is shown, those that it may call, and whether it has to call one."""
    tools: list[dict[str, Any]] = []
    for place, tool in enumerate(asked.tools):
        if tool.type != "custom" or tool.input_schema is None:
            shown, param = json.dumps(tool.type[:32]), f"tools[{place}].type"
            message = f"{param}: {shown} is not offered here; give tools with an input_schema"
            raise ApiError(400, message, code="unsupported", param=param)
        values = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        tools.append({"type": "function", "function": {**values, "strict": tool.strict}})
    choice = asked.tool_choice
    if choice.type == "none":
        return [], [], "none"
    if choice.type != "tool":
        return tools, tools, "required" if choice.type == "any" else "auto"
    may_call = [tool for tool in tools if tool["function"]["name"] == choice.name]
    if not may_call:
        raise bad_value("tool_choice.name", "it names a tool that is not among tools")
    return tools, may_call, "required"


def _think(jobs: JobMaker, asked: CountFields, notices: list[str]) -> Think:
    """Return how the model is to think; add to the notices what cannot be told."""
    effort, thinking = asked.output_config.effort, asked.thinking
    if thinking is not None and thinking.budget_tokens is not None:
        notices.append("thinking.budget_tokens: thoughts have no limit of their own here, and it was ignored")
    is_on = None if thinking is None or thinking.type == "adaptive" else thinking.type == "enabled"
    think = jobs.think(effort, "output_config.effort", notices) if is_on is not False else None
    return think if think is not None else jobs.think(is_on, "thinking.type", notices)


def _continues(asked: CountFields) -> bool:
    """Return whether the last message is to be continued."""
    last, place = asked.messages[-1], f"messages[{len(asked.messages) - 1}]"
    if last.role != "assistant":
        return False
    blocks = [BlockFields(type="text", text=last.content)] if isinstance(last.content, str) else last.content
    if any(block.type == "tool_use" for block in blocks) or not any(block.text for block in blocks):
        raise bad_value(place, "the last message must be the user's, or a text of the assistant's to continue")
    return True


def _messages(asked: CountFields, notices: list[str]) -> list[dict[str, Any]]:
    """Return the messages as Python has them; add to the notices what they cannot say."""
    made: list[dict[str, Any]] = []
    if asked.system:
        made.append({"role": "system", "content": _text(asked.system, "system")})
    ids: set[str | None] = set()
    for place, message in enumerate(asked.messages):
        param, content = f"messages[{place}].content", message.content
        kinds = ("tool_use", "thinking") if message.role == "assistant" else ("tool_result",)
        text = _text(content, param, kinds)
        others = [] if isinstance(content, str) else [block for block in content if block.type in kinds]
        if message.role == "assistant":
            made.append({"role": "assistant", "content": text, **_said(others, param)})
            ids |= {block.id for block in others if block.type == "tool_use"}
            continue
        for block in others:
            if block.tool_use_id not in ids:
                raise bad_value(
                    f"{param}.tool_use_id",
                    "no earlier message has a tool_use with this id; send the assistant's message before the results",
                )
            if block.is_error:
                notices.append("is_error: chat templates have no place for it; the result itself has to say it")
            result = _text(block.content or "", f"{param}.content")
            made.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": result})
        if text or not others:
            made.append({"role": message.role, "content": text})
    notices[:] = dict.fromkeys(notices)
    return made


def _said(blocks: Sequence[BlockFields], param: str) -> dict[str, Any]:
    """Return thoughts and calls of the assistant as Python has them."""
    thought = "".join(block.thinking or "" for block in blocks if block.type == "thinking")
    calls = []
    for block in blocks:
        if block.type == "tool_use":
            if not block.id or not block.name:
                raise bad_value(param, "a tool_use needs an id and a name")
            calls.append({"id": block.id, "function": {"name": block.name, "arguments": block.input or {}}})
    return ({"reasoning_content": thought} if thought else {}) | ({"tool_calls": calls} if calls else {})


def _text(content: str | Sequence[BlockFields], param: str, others: Sequence[str] = ()) -> str:
    """Return the text of some blocks.

    Args:
        others: kinds of blocks that are read elsewhere.
    """
    if isinstance(content, str):
        return content
    for number, block in enumerate(content):
        if block.type not in ("text", *others) or (block.type == "text" and block.text is None):
            raise ApiError(
                400,
                f'{param}[{number}].type: {json.dumps(block.type[:32])} is not read here; send blocks of type "text"',
                code="unsupported_content",
                param=f"{param}[{number}].type",
            )
    return "\n".join(block.text or "" for block in content if block.type == "text")


class _Response:
    """The answer to a request, as Anthropic's clients read it."""

    def __init__(self, jobs: JobMaker, job: Job) -> None:
        self.job = job
        self._model = jobs.model
        self._common = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": jobs.settings.name,
        }

    async def whole(self, work: Work) -> list[bytes | bytearray]:
        reader, merged = self.job.reader(0), MergedMessage()
        async for _, events, answer in work:
            work.kept.grow(CHARACTER_BYTES * sum(len(event.text) for event in events))
            for delta in reader.deltas(events, answer):
                merged.add(delta)
        message = merged.message()
        blocks: list[dict[str, Any]] = []
        if message.get("reasoning_content"):
            blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
        if message["content"]:
            blocks.append({"type": "text", "text": message["content"]})
        for call in whole_calls(message.get("tool_calls", ())):
            blocks.append({**_tool_use(call.id, call.name), "input": dict(call.arguments)})
        return [json_of({**self._common, "content": blocks, **self._ending(work, has_calls=reader.has_calls)})]

    async def chunks(self, work: Work) -> AsyncIterator[bytes]:
        reader, blocks = self.job.reader(0), _Blocks()
        async for _, events, answer in work:
            if not blocks.has_begun:
                empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
                yield _event("message_start", message={**self._common, **empty, "usage": self._usage(work)})
                blocks.has_begun = True
            for delta in reader.deltas(events, answer):
                for piece in blocks.add(delta):
                    yield piece
        for piece in blocks.close():
            yield piece
        ending = self._ending(work, has_calls=reader.has_calls)
        usage, own = ending.pop("usage"), ending.pop("edge_spec")
        yield _event("message_delta", delta=ending, usage=usage, edge_spec=own)
        yield _event("message_stop")

    def _ending(self, work: Work, *, has_calls: bool) -> dict[str, Any]:
        """Return why the answer has ended, its numbers of tokens, and what its sender should know."""
        (answer,) = work.answers
        by = answer.finish_reason
        reason = {"eos": "end_turn", "stop": "stop_sequence", "context": "model_context_window_exceeded"}.get(
            by or "", "max_tokens"
        )
        return {
            "stop_reason": "tool_use" if has_calls and by in ("eos", "stop") else reason,
            "stop_sequence": answer.stopped_by,
            "usage": self._usage(work),
            "edge_spec": {**self.job.facts(self._model, work.answers, work.notices), "ended_by": by},
        }

    def _usage(self, work: Work) -> dict[str, Any]:
        (answer,) = work.answers
        return {
            "input_tokens": len(answer.prompt) - answer.n_reused,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": answer.n_reused,
            "output_tokens": answer.statistics.tokens,
        }


class _Blocks:
    """The blocks of a streamed message.

    Attributes:
        has_begun: whether the message has begun.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self._number, self._kind = -1, ""

    def add(self, delta: dict[str, Any]) -> Iterator[bytes]:
        """Yield the events of what a delta of a message adds."""
        if "reasoning_content" in delta:
            yield from self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta(type="thinking_delta", thinking=delta["reasoning_content"])
        elif "content" in delta:
            yield from self._open("text", {"type": "text", "text": ""})
            yield self._delta(type="text_delta", text=delta["content"])
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                yield from self._open(
                    f"call {part['index']}", {**_tool_use(part["id"], part["function"]["name"]), "input": {}}
                )
            if part["function"]["arguments"]:
                yield self._delta(type="input_json_delta", partial_json=part["function"]["arguments"])

    def _open(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        """Begin a block of this kind, unless it is the present one."""
        if kind != self._kind:
            yield from self.close()
            self._number, self._kind = self._number + 1, kind
            yield _event("content_block_start", index=self._number, content_block=block)

    def close(self) -> Iterator[bytes]:
        """End the present block."""
        if self._kind == "thinking":
            yield self._delta(type="signature_delta", signature="")
        if self._kind:
            yield _event("content_block_stop", index=self._number)
        self._kind = ""

    def _delta(self, **delta: str) -> bytes:
        return _event("content_block_delta", index=self._number, delta=delta)


def _tool_use(call_id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": _TOOL_USE + call_id.removeprefix(_CALL), "name": name}


def _event(name: str, **values: Any) -> bytes:
    return sse({"type": name, **values}, name)


_KINDS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 504: "timeout_error",
}  # fmt: skip
"""Kinds of errors by status; those below 500 are else the request's, and the others the server's."""


def _error(failure: ApiError) -> dict[str, Any]:
    kind = _KINDS.get(failure.status, "invalid_request_error" if failure.status < 500 else "api_error")
    # Agents look for these words.
    before = "prompt is too long: " if failure.code == "context_length_exceeded" else ""
    return {"type": "error", "error": {"type": kind, "message": before + failure.message}}


ANTHROPIC = Dialect(
    begins="/v1/messages",
    writes={"/v1/messages": _write},
    converts={"/v1/messages/count_tokens": _count},
    error=_error,
    failed=lambda failure: sse(_error(failure), "error"),
)
