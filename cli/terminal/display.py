"""Displays of a conversation: the protocol, and plain text for pipes and dumb terminals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TextIO

from edge_spec.cli.printing import safe

__all__ = ["THOUGHTS", "Display", "PlainDisplay"]

THOUGHTS = ("show", "dim", "hide")
"""The ways to show a model's thoughts."""


class Display(Protocol):
    """Shows answers as they are written, and everything else between them.

    Attributes:
        thoughts: one of ``THOUGHTS``.
    """

    thoughts: str

    def notice(self, sentence: str) -> None:
        """Show a notice."""

    def error(self, sentence: str) -> None:
        """Show an error."""

    def show(self, lines: Iterable[str]) -> None:
        """Show the output of a command."""

    def begin(self) -> None:
        """Begin an answer."""

    def write(self, text: str, *, thought: bool) -> None:
        """Show more text of the answer, or of a thought."""

    def refresh(self, status: str) -> None:
        """Called some times a second while an answer is being written, with the status line."""

    def end(self) -> None:
        """End the answer."""


class PlainDisplay:
    """Answers unchanged on ``out``, separated by empty lines; everything else on ``notes``.

    Args:
        is_terminal: ``out`` is a terminal: control characters are replaced, and commands print there.
        thoughts: ``hide``; otherwise they appear between ``<think>`` and ``</think>``.
    """

    def __init__(self, out: TextIO, notes: TextIO, *, is_terminal: bool = False, thoughts: str = "hide") -> None:
        self.thoughts = thoughts
        self._out = out
        self._notes = notes
        self._is_terminal = is_terminal
        self._n_answers = 0
        self._last = ""
        self._in_thought = False
        self._is_writing = False
        self._waiting: list[str] = []

    def notice(self, sentence: str) -> None:
        """Print a line, after the answer that is being written."""
        line = f"edge-spec: note: {safe(sentence)}\n"
        if self._is_writing:
            self._waiting.append(line)
        else:
            self._note(line)

    def error(self, sentence: str) -> None:
        """A line."""
        self._note(f"edge-spec: error: {' '.join(safe(sentence).split())}\n")

    def show(self, lines: Iterable[str]) -> None:
        """Print line by line."""
        for line in lines:
            if self._is_terminal:
                self._out.write(safe(line) + "\n")
            else:
                self._note(safe(line) + "\n")
        self._out.flush()

    def begin(self) -> None:
        """Print an empty line, if this is not the first answer."""
        if self._n_answers and not self._is_terminal:
            self._out.write("\n")
        self._n_answers += 1
        self._is_writing = True
        self._last, self._in_thought = "", False

    def write(self, text: str, *, thought: bool) -> None:
        """Print the text at once."""
        if thought and self.thoughts == "hide":
            return
        if thought != self._in_thought:
            self._put("<think>\n" if thought else "\n</think>\n\n")
            self._in_thought = thought
        self._put(safe(text) if self._is_terminal else text.encode("utf-8", "replace").decode())
        self._out.flush()

    def refresh(self, status: str) -> None:
        """Do nothing: plain text has no status line."""

    def end(self) -> None:
        """Print a newline, if the answer did not end with one."""
        if self._in_thought:
            self._put("\n</think>")
        if not self._last.endswith("\n"):
            self._put("\n")
        self._out.flush()
        self._is_writing = False
        for line in self._waiting:
            self._note(line)
        self._waiting.clear()

    def _put(self, text: str) -> None:
        self._out.write(text)
        self._last = text or self._last

    def _note(self, line: str) -> None:
        self._notes.write(line)
        self._notes.flush()
