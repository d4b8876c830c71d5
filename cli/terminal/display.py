"""What a conversation is shown on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

__all__ = ["THOUGHTS", "Display"]

THOUGHTS = ("show", "dim", "hide")
"""What can become of the thoughts of a model."""


class Display(Protocol):
    """Shows answers as they are written, and everything else between them.

    Attributes:
        thoughts: one of ``THOUGHTS``.
    """

    thoughts: str

    def notice(self, sentence: str) -> None:
        """Something that the reader should know."""

    def error(self, sentence: str) -> None:
        """Something could not be done."""

    def show(self, lines: Iterable[str]) -> None:
        """What a command found out."""

    def begin(self) -> None:
        """An answer begins."""

    def write(self, text: str, *, thought: bool) -> None:
        """More of the answer, or of a thought."""

    def refresh(self, status: str) -> None:
        """Called some times a second while an answer is being written, with the status line."""

    def end(self) -> None:
        """The answer has ended."""
