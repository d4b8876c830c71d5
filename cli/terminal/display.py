"""The protocol of displays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

__all__ = ["THOUGHTS", "Display"]

THOUGHTS = ("show", "dim", "hide")
"""What can be done with a model's thoughts."""


class Display(Protocol):
    """Shows answers as they are written, and everything else between them.

    Attributes:
        thoughts: one of ``THOUGHTS``.
    """

    thoughts: str

    def notice(self, sentence: str) -> None:
        """Show something that the user should know."""

    def error(self, sentence: str) -> None:
        """Show what failed."""

    def show(self, lines: Iterable[str]) -> None:
        """Show the output of a command."""

    def begin(self) -> None:
        """An answer begins."""

    def write(self, text: str, *, thought: bool) -> None:
        """More text of the answer, or of a thought."""

    def refresh(self, status: str) -> None:
        """Called some times a second while an answer is being written, with the status line."""

    def end(self) -> None:
        """The answer has ended."""
