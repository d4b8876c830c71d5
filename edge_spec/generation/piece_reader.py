"""Reading texts that come in pieces, cut anywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from edge_spec.generation.text_stream import overlap

__all__ = ["PieceReader", "Waiting"]

T = TypeVar("T")
R = TypeVar("R")

Waiting = Generator[None, None, R]
"""Reads a text and yields wherever it needs more of it."""


class PieceReader(ABC, Generic[T]):
    """Finds things in a text that comes in pieces: what is certain is told at once, the rest is held back.

    Attributes:
        held: the text that is not read yet.
        found: what has been found and not been taken.
        has_ended: whether no more text comes.
        is_cut: whether it ended in the middle.
    """

    def __init__(self) -> None:
        self.held = ""
        self.found: list[T] = []
        self.has_ended = self.is_cut = False
        self._reading = self._read()

    @abstractmethod
    def _read(self) -> Waiting[None]:
        """Read all of the text."""

    def push(self, text: str) -> list[T]:
        """More text; returns what is certain now."""
        self.held += text
        return self._take()

    def finish(self, *, is_cut: bool = False) -> list[T]:
        """Return the rest of a text that has ended.

        Args:
            is_cut: it would have gone on: what may be half a mark at its end is left out.
        """
        self.has_ended, self.is_cut = True, is_cut
        return self._take()

    def _take(self) -> list[T]:
        next(self._reading, None)
        found, self.found = self.found, []
        return found

    def some(self) -> Waiting[bool]:
        """Wait for text; says whether there is any."""
        while not self.held and not self.has_ended:
            yield
        return bool(self.held)

    def until(self, to: Callable[[str], object], *marks: str, keep: bool = False) -> Waiting[bool]:
        """Hand on what comes before the first of some marks; says whether one came.

        Args:
            keep: the mark is still to be read.
        """
        while True:
            place, mark = min(((self.held.find(mark), mark) for mark in marks if mark in self.held), default=(-1, ""))
            n = place
            if not mark:
                is_sure = self.has_ended and not self.is_cut
                n = len(self.held) - (0 if is_sure else max(overlap(self.held, each) for each in marks))
            text, self.held = self.held[:n], self.held[n if keep else n + len(mark) :]
            if text:
                to(text)
            if mark:
                return True
            if self.has_ended:
                self.held = ""
                return False
            yield

    def next_of(self, *texts: str) -> Waiting[str]:
        """Take whichever of some texts comes next, white space before it aside; returns an empty one if none does."""
        while True:
            begun = self.held.lstrip()
            found = next((text for text in texts if begun.startswith(text)), "")
            if found or self.has_ended or not any(text.startswith(begun) for text in texts):
                self.held = begun[len(found) :]
                return found
            yield

    def expect(self, text: str) -> Waiting[bool]:
        """Take a text, whatever white space is in it; says whether it came."""
        for part in text.split():
            if not (yield from self.next_of(part)):
                return False
        return True
