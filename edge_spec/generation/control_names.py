"""Names of control tokens in conversations: those that a template writes, and those that somebody only says."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from edge_spec.errors import PromptError

__all__ = ["ControlNames", "RenderedText", "WrittenText", "unused_character"]

_MARKS = range(0xF0000, 0xFFFFE)
"""Characters that mean nothing: one that occurs nowhere else follows the first letter of each name that is said."""


class RenderedText(str):
    """A conversation as a chat template writes it.

    Attributes:
        said: the places in it where a message, not the template, holds the name of a control token.
    """

    said: frozenset[int] = frozenset()

    @classmethod
    def of(cls, text: str, said: Collection[int]) -> RenderedText:
        """Return a text with these places."""
        made = cls(text)
        made.said = frozenset(said)
        return made

    @classmethod
    def unmarked(cls, text: str, mark: str) -> RenderedText:
        """Return a text without the marks of ``ControlNames.marked``."""
        parts = text.split(mark)
        said, place = [], 0
        for part in parts[:-1]:
            place += len(part)
            said.append(place - 1)
        return cls.of("".join(parts), said)

    def after(self, start: int) -> RenderedText:
        """Return what comes after so many characters."""
        return self.of(self[start:], {place - start for place in self.said if place >= start})

    def before(self, end: int) -> RenderedText:
        """Return the first characters."""
        return self.of(self[:end], {place for place in self.said if place < end})


class WrittenText(str):
    """The text of a message of which some names of control tokens are meant.

    Attributes:
        written: the places where these begin.
    """

    written: frozenset[int] = frozenset()

    @classmethod
    def of(cls, text: str, written: Collection[int]) -> WrittenText:
        """Return a text with these places."""
        made = cls(text)
        made.written = frozenset(written)
        return made


class ControlNames:
    """The names of a vocabulary's control tokens."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(filter(None, names))
        self._lengths = sorted({len(name) for name in self._names}, reverse=True)
        letters = "".join(sorted({name[0] for name in self._names}))
        self._first = re.compile(f"[{re.escape(letters)}]" if letters else "(?!)")

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield every place where a name begins, and where the longest there ends."""
        for found in self._first.finditer(text):
            start = found.start()
            for length in self._lengths:
                if text[start : start + length] in self._names:
                    yield start, start + length
                    break

    def controls(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where in a rendered conversation the control tokens lie that its template has written."""
        said = text.said if isinstance(text, RenderedText) else frozenset()
        last = 0
        for start, end in self.places(text):
            if start >= last and start not in said:
                yield start, end
                last = end

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield a rendered conversation in parts, and whether names of control tokens in each are these tokens."""
        said = deque(sorted(text.said) if isinstance(text, RenderedText) else ())
        begin = last = 0
        for start, end in (*self.controls(text), (len(text), len(text))) if said else ():
            while said and said[0] < last:
                said.popleft()
            if said and said[0] < start:
                if begin < last:
                    yield text[begin:last], True
                yield text[last:start], False
                begin = start
            last = end
        if begin < len(text):
            yield text[begin:], True

    def _said(self, text: str) -> Iterator[int]:
        """Yield where in a message's text the names begin that are only said."""
        written = text.written if isinstance(text, WrittenText) else frozenset()
        return (start for start, _ in self.places(text) if start not in written)

    def mark(self, values: Any, source: str) -> str:
        """Return a character for ``marked`` that neither values nor a template hold; empty if they say no name.

        Raises:
            PromptError: they hold all of them.
        """
        is_said = any(True for text in _strings(values) for _ in self._said(text))
        return unused_character(values, source) if is_said else ""

    def marked(self, value: Any, mark: str) -> Any:
        """Return a value for a template with a mark in every name."""
        if isinstance(value, str):
            parts, last = [], 0
            for start in self._said(value):
                parts.append(value[last : start + 1])
                last = start + 1
            return mark.join((*parts, value[last:]))
        if isinstance(value, Mapping):
            return {self.marked(name, mark): self.marked(each, mark) for name, each in value.items()}
        return [self.marked(each, mark) for each in value] if isinstance(value, list | tuple) else value


def unused_character(values: Any, source: str) -> str:
    """Return a character that means nothing, and that neither values nor a template hold.

    Raises:
        PromptError: they hold all of them.
    """
    taken = set(source).union(*_strings(values))
    mark = next((chr(code) for code in _MARKS if chr(code) not in taken), None)
    if mark is None:
        raise PromptError("the messages hold every private character", hint="leave some of them out")
    return mark


def _strings(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            waiting += [*each, *each.values()]
        elif isinstance(each, list | tuple):
            waiting += each
