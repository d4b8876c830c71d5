"""A plugin for Simon Willison's ``llm``: ``llm -m edge-spec/demo "Tell me a story."``

It offers the families that come with the package, and the models that ``edge-spec.json`` in llm's folder names, each
with arguments of ``edge_spec.load``::

    {"llama": {"model": "/models/llama-3.2-3b-q4_0.gguf", "draft": "/models/llama-3.2-1b-q4_0.gguf"}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import llm
from pydantic import Field, create_model

from edge_spec.cli.printing import echo
from edge_spec.errors import EdgeSpecError, plainly
from edge_spec.foreign import read_json
from edge_spec.generation.options import REPLY_OPTIONS
from edge_spec.generation.tools.calls import ToolCall
from edge_spec.models.catalogue import family_names

try:
    from llm.parts import StreamEvent
except ImportError:
    # Older versions of llm have no class for thoughts.
    StreamEvent = None  # type: ignore[assignment,misc]

__all__ = ["EdgeSpecModel", "register_models"]

_FILE = "edge-spec.json"
_TEXTS = ("stop", "grammar")
_OPTIONS: dict[str, Any] = {
    name: ((str if name in _TEXTS else each.kind) | None, Field(None, description=each.help))
    for name, each in REPLY_OPTIONS.items()
    if each.flag is not None and (each.kind in (int, float) or name in _TEXTS)
}


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Offer the models to llm."""
    for name, arguments in {**{name: {"model": name} for name in family_names()}, **_named()}.items():
        register(EdgeSpecModel(f"edge-spec/{name}", arguments))


def _named() -> dict[str, dict[str, Any]]:
    """Return the models in the user's own file; if it is unreadable, warn and return none: llm's others stay usable."""
    path: Path = llm.user_dir() / _FILE  # type: ignore[no-untyped-call]
    try:
        named = read_json(path) if path.is_file() else {}
        if not isinstance(named, dict) or not all(isinstance(each, dict) for each in named.values()):
            raise ValueError('it must be of the form {"name": {"model": "file.gguf"}}')
    except (OSError, ValueError) as error:
        echo(f"edge-spec: {path} is left out: {error}; correct it there", err=True)
        return {}
    return named


class EdgeSpecModel(llm.Model):
    """A model of edge-spec, loaded when it is first asked something.

    Args:
        arguments: of ``edge_spec.load``.
    """

    can_stream = True
    supports_schema = True
    supports_tools = True
    Options = create_model("Options", __base__=llm.Model.Options, **_OPTIONS)

    def __init__(self, model_id: str, arguments: dict[str, Any]) -> None:
        self.model_id = model_id
        self._arguments = arguments

    @cached_property
    def _model(self) -> Any:
        import edge_spec

        def wait(sentence: str) -> None:
            echo(f"edge-spec: {sentence} ...", err=True)

        return edge_spec.load(**{"on_wait": wait, **self._arguments})

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: llm.Conversation | None
    ) -> Iterator[Any]:
        """Answer a prompt that continues a conversation."""
        asked = prompt.options.model_dump(exclude_none=True)
        tools = [_declared(tool) for tool in prompt.tools if isinstance(tool, llm.Tool)]
        try:
            reply = self._model.generate(
                _messages(prompt, conversation), json_schema=prompt.schema, tools=tools, reuse=True, **asked
            )
            with reply:
                for is_thought, text in reply.parts():
                    if not is_thought:
                        yield text
                    elif StreamEvent is not None:
                        yield StreamEvent(type="reasoning", chunk=text)
        except EdgeSpecError as error:
            raise llm.ModelError(error.spelled(plainly)) from error
        for call in reply.tool_calls:
            response.add_tool_call(llm.ToolCall(name=call.name, arguments=dict(call.arguments), tool_call_id=call.id))
        done = reply.statistics
        response.set_usage(input=done.prompt_tokens, output=done.tokens, details=done.speculation())
        response.response_json = {"seed": reply.settings.seed, "finish_reason": reply.finish_reason}


def _declared(tool: llm.Tool) -> dict[str, Any]:
    """Return a tool of llm in OpenAI's form."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": {name: value for name, value in function.items() if value}}


def _messages(prompt: llm.Prompt, conversation: llm.Conversation | None) -> list[dict[str, Any]]:
    earlier = conversation.responses if conversation is not None else []
    said = [*_said(prompt, earlier)]
    # System messages of later turns are not among the messages.
    later = [each.system for each in (*(response.prompt for response in earlier), prompt) if each.system]
    systems = [message["content"] for message in said if message["role"] == "system"] + later
    # Templates take one system message, at the beginning: the latest one counts.
    begin = [{"role": "system", "content": systems[-1]}] if systems else []
    return begin + [message for message in said if message["role"] != "system"]


def _said(prompt: llm.Prompt, earlier: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the messages up to the prompt, also of a conversation continued from llm's log."""
    chain = getattr(prompt, "messages", None)
    if chain is not None:
        for message in chain:
            # Thoughts are parts of their own.
            texts = [part.text for part in message.parts if hasattr(part, "text") and not hasattr(part, "redacted")]
            calls = [part for part in message.parts if hasattr(part, "arguments")]
            yield from _results(part for part in message.parts if hasattr(part, "output"))
            if message.role != "tool":
                yield _message(message.role, "".join(texts), calls)
        return
    # Older versions of llm have no ``messages``: rebuild them from the earlier responses.
    for response in earlier:
        yield from _asked(response.prompt)
        yield _message("assistant", response.text(), response.tool_calls())
    yield from _asked(prompt)


def _asked(prompt: llm.Prompt) -> Iterator[dict[str, Any]]:
    yield from _results(prompt.tool_results)
    if prompt.prompt or not prompt.tool_results:
        yield _message("user", prompt.prompt)


def _message(role: str, text: str, calls: Iterable[Any] = ()) -> dict[str, Any]:
    made = [ToolCall(id=call.tool_call_id or "", name=call.name, arguments=call.arguments).to_json() for call in calls]
    return {"role": role, "content": text} | ({"tool_calls": made} if made else {})


def _results(given: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield results of calls as messages."""
    for result in given:
        yield {"role": "tool", "tool_call_id": result.tool_call_id or "", "content": result.output}
