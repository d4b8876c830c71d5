"""The text of a reply, taken apart as it streams: thoughts, the answer, calls of tools."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from types import MappingProxyType
from typing import Any

from edge_spec.generation.piece_reader import PieceReader, Waiting
from edge_spec.generation.text_stream import overlap
from edge_spec.generation.thoughts import Thinking
from edge_spec.generation.tools.syntax import CallSyntax

__all__ = ["AnswerParser", "MergedMessage", "parts_of"]

Delta = dict[str, Any]
"""A piece of a message, as OpenAI's clients add it to what they have."""

_NAME = string.ascii_letters + string.digits + "_.-"


class AnswerParser:
    """Makes deltas of a message from the text of a reply.

    Args:
        opening: what the prompt has written of the reply, such as the mark that opens a thought.
        syntax: how the model writes calls; None if all of the answer is text.
        schemas: those of the arguments, by function.
        alone: see ``CallParser``.
    """

    def __init__(
        self,
        opening: str,
        syntax: CallSyntax | None,
        schemas: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        *,
        alone: bool = False,
    ) -> None:
        self._thinking = Thinking(opening)
        self._calls = CallParser(syntax, schemas, alone=alone) if syntax is not None else None

    @property
    def has_calls(self) -> bool:
        """Whether there has been a call."""
        return self._calls is not None and self._calls.n_calls > 0

    def push(self, text: str) -> list[Delta]:
        """Take in more text; return what is certain by now."""
        return self._deltas(self._thinking.push(text))

    def finish(self, *, is_cut: bool = False) -> list[Delta]:
        """Return the rest of a text that has ended; see ``PieceReader.finish``."""
        deltas = self._deltas(self._thinking.finish(is_cut=is_cut))
        return deltas + (self._calls.finish(is_cut=is_cut) if self._calls is not None else [])

    def _deltas(self, parts: list[tuple[bool, str]]) -> list[Delta]:
        deltas: list[Delta] = []
        for is_thought, text in parts:
            if is_thought:
                deltas.append({"reasoning_content": text})
            else:
                deltas += self._calls.push(text) if self._calls is not None else [{"content": text}]
        return deltas


def parts_of(deltas: Iterable[Delta]) -> Iterator[tuple[bool, str]]:
    """Yield the texts in deltas, and whether each is a thought."""
    for delta in deltas:
        for name, text in delta.items():
            if name != "tool_calls":
                yield name == "reasoning_content", text


class CallParser(PieceReader[Delta]):
    """Finds calls in an answer. Their arguments are handed on as they are written.

    Args:
        syntax: how they are written.
        schemas: those of the arguments, by function.
        alone: an answer that does not begin with a call of one of these functions has none.

    Attributes:
        n_calls: how many have begun.
    """

    def __init__(self, syntax: CallSyntax, schemas: Mapping[str, Mapping[str, Any]], *, alone: bool = False) -> None:
        super().__init__()
        self.n_calls = 0
        self._syntax = syntax
        self._schemas = schemas
        self._has_text = False
        self._beginnings: list[str] = []
        if alone:
            named = [syntax.opening + name + syntax.middle for name in schemas]
            self._beginnings = [syntax.mark.lstrip()] if syntax.mark else named

    def _read(self) -> Waiting[None]:
        while (yield from self._text()):
            if not (yield from self._call()):
                # No model is let write that; it is no text either.
                while (yield from self.some()):
                    self.held = ""
                return

    def _text(self) -> Waiting[bool]:
        """Read up to a call; says whether one comes."""
        while True:
            is_call, n = self._before_call()
            # White space before a call is not part of the answer.
            text = self.held[:n].rstrip() if self._syntax.mark or not is_call else ""
            if text:
                self._has_text = True
                self.found.append({"content": text})
            self.held = self.held[n if is_call else len(text) :]
            if is_call:
                return True
            if self.has_ended:
                rest = self.held[: max(n - len(text), 0)]
                if rest and not self.n_calls:
                    self.found.append({"content": rest})
                return False
            yield

    def _before_call(self) -> tuple[bool, int]:
        """Return whether a call is at hand, and how much text there is for sure before one."""
        mark, is_sure = self._syntax.mark, self.has_ended and not self.is_cut
        begun = self.held.lstrip("; \t\r\n")
        if self._beginnings:
            if not self._has_text and begun.startswith(tuple(self._beginnings)):
                return True, len(self.held) - len(begun)
            may_begin = not self._has_text and any(each.startswith(begun) for each in self._beginnings)
            return False, 0 if may_begin and not is_sure else len(self.held)
        if mark:
            place = self.held.find(mark)
            return place >= 0, place if place >= 0 else len(self.held) - (0 if is_sure else overlap(self.held, mark))
        if begun.startswith("{") and not self._has_text:
            return True, len(self.held) - len(begun)
        return False, len(self.held) if begun or is_sure else 0

    def _call(self) -> Waiting[bool]:
        """Read one, or several that are joined; says whether they are in the right form."""
        syntax = self._syntax
        found = yield from self.expect(syntax.opening)
        while found:
            while not (after := self.held.lstrip().lstrip(_NAME)) and not self.has_ended:
                yield
            name, self.held = self.held[: len(self.held) - len(after)].lstrip(), after
            if not (name and self.held and (yield from self.expect(syntax.middle))):
                return False
            self._begin(name)
            yield from syntax.arguments.read(self, self._schemas.get(name, {}), self._argue)
            found = bool(syntax.joined) and bool((yield from self.next_of(syntax.joined.strip())))
        return (yield from self.expect(syntax.closing))

    def _begin(self, name: str) -> None:
        function = {"name": name, "arguments": ""}
        call = {"index": self.n_calls, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
        self.found.append({"tool_calls": [call]})
        self.n_calls += 1

    def _argue(self, text: str) -> None:
        """Hand on more of the arguments, in one piece what came in one."""
        last = self.found[-1]["tool_calls"][0] if self.found and "tool_calls" in self.found[-1] else None
        if last is None or "id" in last:
            last = {"index": self.n_calls - 1, "function": {"arguments": ""}}
            self.found += [{"tool_calls": [last]}] if text else []
        last["function"]["arguments"] += text


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
