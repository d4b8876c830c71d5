"""The text of a reply, taken apart as it streams: thoughts, the answer, calls of tools."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from enum import Enum, auto
from io import StringIO
from typing import Any

from edge_spec.foreign import parse_json
from edge_spec.generation.text_stream import Thinking, overlap
from edge_spec.server.call_syntax import CallSyntax

__all__ = ["AnswerParser", "MergedMessage"]

Delta = dict[str, Any]
"""A piece of a message, as OpenAI's clients add it to what they have."""

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')


class AnswerParser:
    """Makes deltas of a message from the text of a reply.

    Args:
        opening: what the prompt has written of the reply, such as the mark that opens a thought.
        syntax: how the model writes calls; None if all of the answer is text.
    """

    def __init__(self, opening: str, syntax: CallSyntax | None) -> None:
        self._thinking = Thinking(opening)
        self._calls = CallParser(syntax) if syntax is not None else None

    @property
    def has_calls(self) -> bool:
        """Whether there has been a call."""
        return self._calls is not None and self._calls.n_calls > 0

    def push(self, text: str) -> list[Delta]:
        """More text; what is certain now."""
        return self._deltas(self._thinking.push(text))

    def finish(self) -> list[Delta]:
        """Return the rest of a text that has ended."""
        return self._deltas(self._thinking.finish()) + (self._calls.finish() if self._calls is not None else [])

    def _deltas(self, parts: list[tuple[bool, str]]) -> list[Delta]:
        deltas: list[Delta] = []
        for is_thought, text in parts:
            if is_thought:
                deltas.append({"reasoning_content": text})
            else:
                deltas += self._calls.push(text) if self._calls is not None else [{"content": text}]
        return deltas


class _At(Enum):
    TEXT, HEAD, ARGUMENTS, TAIL = auto(), auto(), auto(), auto()


class CallParser:
    """Finds calls in an answer. Their arguments are handed on as they are written.

    Attributes:
        n_calls: how many have begun.
    """

    def __init__(self, syntax: CallSyntax) -> None:
        self.n_calls = 0
        self._syntax = syntax
        self._at = _At.TEXT
        self._held = ""
        self._has_text = False
        self._json = _JsonEnd()

    def push(self, text: str) -> list[Delta]:
        """More of the answer."""
        self._held += text
        deltas: list[Delta] = []
        step = {_At.TEXT: self._text, _At.HEAD: self._head, _At.ARGUMENTS: self._arguments, _At.TAIL: self._tail}
        while step[self._at](deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        """End the answer: what was held back is text, unless it was part of a call."""
        held, self._held = self._held, ""
        is_text = self._at is _At.TEXT and (held.strip() or not self.n_calls)
        return [{"content": held}] if is_text and held else []

    def _text(self, deltas: list[Delta]) -> bool:
        mark = self._syntax.mark
        if self._syntax.opening:
            before, _, rest = self._held.partition(mark)
            is_call = len(before) < len(self._held)
            text = before if is_call else before[: len(before) - overlap(before, mark)]
        else:
            rest = self._held.lstrip("; \t\r\n")
            is_call = rest.startswith(mark) and not self._has_text
            text = "" if is_call or not rest else self._held
        # White space before a call is not part of the answer; at the end of a text it is, see ``finish``.
        text = text.rstrip()
        if text:
            self._has_text = True
            deltas.append({"content": text})
        self._held = rest if is_call else self._held[len(text) :]
        if is_call:
            self._at = _At.HEAD
        return is_call

    def _head(self, deltas: list[Delta]) -> bool:
        head = _HEAD.match(self._held)
        if head is None:
            return False
        self._held = self._held[head.end() :]
        function = {"name": parse_json(head[1]), "arguments": ""}
        call = {"index": self.n_calls, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
        deltas.append({"tool_calls": [call]})
        self.n_calls += 1
        self._at, self._json = _At.ARGUMENTS, _JsonEnd()
        return True

    def _arguments(self, deltas: list[Delta]) -> bool:
        if self._json.is_before:
            self._held = self._held.lstrip()
        end = self._json.find(self._held)
        text, self._held = (self._held, "") if end is None else (self._held[:end], self._held[end:])
        if text:
            deltas.append({"tool_calls": [{"index": self.n_calls - 1, "function": {"arguments": text}}]})
        if end is not None:
            self._at = _At.TAIL
        return end is not None

    def _tail(self, deltas: list[Delta]) -> bool:
        """Return the brace that closes the call, and what comes after it."""
        closing = self._syntax.closing.strip()
        found = re.match(r"\s*\}\s*" + re.escape(closing), self._held)
        if found is None:
            return False
        self._held = self._held[found.end() :]
        self._at = _At.TEXT
        return True


class _JsonEnd:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    @property
    def is_before(self) -> bool:
        """Whether it has not begun yet."""
        return self._depth == 0

    def find(self, text: str) -> int | None:
        """Return the place behind its last brace; None if that is yet to come."""
        for place, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
        return None


class MergedMessage:
    """The message that deltas add up to."""

    def __init__(self, deltas: Iterable[Delta] = ()) -> None:
        self._texts: dict[str, StringIO] = {}
        self._calls: list[tuple[Delta, StringIO]] = []
        for delta in deltas:
            self.add(delta)

    def add(self, delta: Delta) -> None:
        """Add another one."""
        for name in ("content", "reasoning_content"):
            if name in delta:
                self._texts.setdefault(name, StringIO()).write(delta[name])
        for part in delta.get("tool_calls", ()):
            if part["index"] == len(self._calls):
                self._calls.append((part, StringIO()))
            self._calls[part["index"]][1].write(part["function"]["arguments"])

    def message(self) -> dict[str, Any]:
        """Return it as it is now."""
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message |= {name: text.getvalue() for name, text in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [
                {"id": call["id"], "type": "function", "function": {**call["function"], "arguments": text.getvalue()}}
                for call, text in self._calls
            ]
        else:
            message["content"] = message["content"] or ""
        return message
