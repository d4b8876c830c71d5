"""Calls of tools that a model has written, and how they are read off its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edge_spec.errors import BAD_RECORD, PromptError
from edge_spec.foreign import parse_json
from edge_spec.generation.tools.answers import AnswerParser, MergedMessage
from edge_spec.generation.tools.syntax import FORMS, CallSyntax

__all__ = ["CallReading", "ToolCall", "whole_calls", "without_calls"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A function that a model calls.

    Attributes:
        id: tells it from every other call of the conversation.
        name: of the function.
        arguments: by name, valid by the function's schema.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(hash=False)

    def result(self, value: Any) -> dict[str, Any]:
        """Return the message that tells the model what the function returned: a text, or what JSON can write.

        Raises:
            PromptError: JSON cannot write it.
        """
        try:
            content = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            what = f"the result of {self.name!r} cannot be written as JSON ({error})"
            raise PromptError(what, hint="give a text, numbers, lists, dictionaries, or their like") from None
        return {"role": "tool", "tool_call_id": self.id, "content": content}

    def to_json(self) -> dict[str, Any]:
        """Return it in OpenAI's form, its arguments as a text."""
        arguments = json.dumps(dict(self.arguments), ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}

    def for_template(self) -> dict[str, Any]:
        """Return it as chat templates take it."""
        function = {"name": self.name, "arguments": dict(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}

    @classmethod
    def from_json(cls, values: Any) -> ToolCall:
        """Return a call in OpenAI's form; its arguments may also be an object.

        Raises:
            PromptError: it is none.
        """
        try:
            name, arguments = values["function"]["name"], values["function"].get("arguments") or {}
            if isinstance(arguments, str):
                arguments = parse_json(arguments)
            if isinstance(name, str) and isinstance(arguments, Mapping):
                return cls(id=str(values.get("id") or ""), name=name, arguments=arguments)
        except BAD_RECORD:
            pass
        form = '{"id": "...", "type": "function", "function": {"name": "...", "arguments": "a JSON object"}}'
        raise PromptError("a message has a tool call that is none", hint=f"write it as {form}")


def whole_calls(calls: Iterable[Mapping[str, Any]]) -> Iterator[ToolCall]:
    """Yield those of the calls of a message that have been written to their end; they have some arguments, if only an
    empty object."""
    for call in calls:
        if not call["function"]["arguments"]:
            return
        try:
            yield ToolCall.from_json(call)
        except PromptError:
            return


@dataclass(frozen=True, kw_only=True)
class CallReading:
    """How an answer is taken apart; see ``AnswerParser``.

    Attributes:
        syntax: how the model writes calls; None if all of the answer is text.
        schemas: those of the arguments, by function.
        alone: an answer that does not begin with a call has none.
    """

    syntax: CallSyntax | None = None
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    alone: bool = False

    def parser(self, before: str = "") -> AnswerParser:
        """Return what reads an answer as it comes.

        Args:
            before: the text so far.
        """
        parser = AnswerParser("", self.syntax, self.schemas, alone=self.alone)
        if before.strip():
            parser.push(before)
        return parser

    def message(
        self, content: str, *, is_cut: bool, call_id: Callable[[int], str] = str
    ) -> tuple[dict[str, Any], tuple[ToolCall, ...]]:
        """Return an answer as a message without its calls, and these. One that was cut off is not among them.

        Args:
            is_cut: it has not reached its own end.
            call_id: makes the id of a call of its number.
        """
        parser = self.parser()
        merged = MergedMessage([*parser.push(content), *parser.finish(is_cut=is_cut)]).message()
        found = enumerate(whole_calls(merged.pop("tool_calls", ())))
        calls = tuple(replace(call, id=call_id(number)) for number, call in found)
        return merged if calls else {**merged, "content": merged["content"] or ""}, calls


_FORMS = tuple(CallReading(syntax=form) for form in FORMS)


def without_calls(content: str, calls: Sequence[ToolCall], *, is_cut: bool) -> dict[str, Any]:
    """Return a message of an answer with these calls, without them: of whichever model it is, its text may hold them
    as that model writes them, or no more than what was said before them."""
    names = [call.name for call in calls]
    for reading in _FORMS:
        message, found = reading.message(content, is_cut=is_cut)
        if [call.name for call in found] == names:
            return message
    return CallReading().message(content, is_cut=is_cut)[0]
