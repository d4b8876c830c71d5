"""Thoughts of models: how they are marked, and how they are told from answers while a text streams in."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edge_spec.generation.piece_reader import PieceReader, Waiting

__all__ = [
    "HARMONY",
    "THOUGHTS",
    "Thinking",
    "ThoughtMarks",
    "answer_of",
    "is_in_channels",
    "marks_of",
    "own_marks",
    "thought_of",
]


@dataclass(frozen=True, kw_only=True)
class ThoughtMarks:
    """How a family marks its thoughts.

    Attributes:
        opening, closing: what stands before a thought, and after it.
        between: what stands between its end and what follows.
        answer: what stands before an answer.
    """

    opening: str
    closing: str
    between: str = ""
    answer: str = ""


_START = "<|start|>assistant"

HARMONY = ThoughtMarks(
    opening="<|channel|>analysis<|message|>", closing="<|end|>", between=_START, answer="<|channel|>final<|message|>"
)
"""gpt-oss: thoughts, answers and calls are messages in channels of their own. Prompts end with its ``between``."""

THOUGHTS = (
    ThoughtMarks(opening="<think>", closing="</think>"),
    ThoughtMarks(opening="<|channel>thought", closing="<channel|>"),
    ThoughtMarks(opening="[THINK]", closing="[/THINK]"),
    HARMONY,
)
"""Of most models, of Gemma 4, of Mistral's, and of gpt-oss."""

_IN_TEXT = THOUGHTS[:-1]
_CHANNEL = "<|channel|>"
_OPENINGS = (*(marks.opening for marks in _IN_TEXT), _START, _CHANNEL)
_IN_CHANNELS = re.compile(r"<\|(?:start\|>(?=assistant)|channel\|>|constrain\|>|message\|>|end\|>)")
_RECIPIENT = re.compile(r"to=(functions\.[\w.-]+)")


def marks_of(template: str) -> ThoughtMarks:
    """Return the marks that a chat template shows; the most common ones if it shows none."""
    return next((marks for marks in THOUGHTS if marks.opening in template and marks.closing in template), THOUGHTS[0])


def is_in_channels(content: str) -> bool:
    """Return whether a text is written in gpt-oss's channels."""
    return content.startswith((_START, _CHANNEL))


def own_marks(content: str) -> frozenset[int]:
    """Return where in an answer the marks are that tell its thoughts: the model's own, whatever else it names."""
    if is_in_channels(content):
        return frozenset(found.start() for found in _IN_CHANNELS.finditer(content))
    start = len(content) - len(content.lstrip())
    marks = next((marks for marks in _IN_TEXT if content.startswith(marks.opening, start)), None)
    return frozenset((start, content.find(marks.closing, start))) if marks else frozenset()


def thought_of(content: str) -> str:
    """Return the text between the marks of a thought, or after the first where it is still open."""
    return "".join(text for is_thought, text in _parts(content) if is_thought).strip()


def answer_of(content: str) -> str:
    """Return the text outside of a thought and its marks."""
    return "".join(text for is_thought, text in _parts(content) if not is_thought)


def _parts(content: str) -> list[tuple[bool, str]]:
    thinking = Thinking()
    return [*thinking.push(content), *thinking.finish()]


class Thinking(PieceReader[tuple[bool, str]]):
    """Finds thoughts and the answer in a text: pairs of whether it is a thought, and text without marks.

    A call of a function in gpt-oss's channels is part of the answer, as `` to=NAME<|message|>ARGUMENTS``.

    Args:
        before: the text so far; some templates open the thought already.
    """

    def __init__(self, before: str = "") -> None:
        super().__init__()
        if before.strip():
            self.push(before)

    def _read(self) -> Waiting[None]:
        while (mark := _beginning(self.held)) is None and not self.has_ended:
            yield
        if mark is None and self.is_cut:
            return
        if mark in (_START, _CHANNEL):
            yield from self._messages()
        elif mark:
            closing = next(marks.closing for marks in _IN_TEXT if marks.opening == mark)
            yield from self.next_of(mark)
            yield from self.until(self._think, closing)
            # White space between thought and answer belongs to neither.
            while not (begun := self.held.lstrip()) and not self.has_ended:
                yield
            self.held = begun
        while (yield from self.some()):
            self._answer(self.held)
            self.held = ""

    def _messages(self) -> Waiting[None]:
        """Read messages in channels."""
        said: set[bool] = set()
        yield from self.next_of(_START)
        # A model that writes no channel answers.
        at_channel = yield from self._comes(_CHANNEL, "to=", "<|message|>")
        while at_channel:
            header: list[str] = []
            # Half a header says nothing.
            if not (yield from self.until(header.append, "<|message|>")):
                return
            called = _RECIPIENT.search("".join(header))
            if called:
                self._answer(f" to={called[1]}<|message|>")
                yield from self.until(self._answer, "<|end|>")
                continue
            is_thought = f"{_CHANNEL}analysis" in "".join(header)
            put = self._think if is_thought else self._answer
            put("\n\n" if is_thought in said else "")
            said.add(is_thought)
            yield from self.until(put, "<|end|>", "<|start|>")

    def _comes(self, *texts: str) -> Waiting[bool]:
        """Return whether one of some texts comes next."""
        while not (begun := self.held.lstrip()).startswith(texts):
            if self.has_ended or not any(text.startswith(begun) for text in texts):
                self.held = "" if self.is_cut else self.held
                return False
            yield
        return True

    def _think(self, text: str) -> None:
        self.found += [(True, text)] if text else []

    def _answer(self, text: str) -> None:
        self.found += [(False, text)] if text else []


def _beginning(text: str) -> str | None:
    """Return the mark that a text begins with, an empty one if it begins with none, None if that is not certain."""
    begun = text.lstrip()
    found = next((mark for mark in _OPENINGS if begun.startswith(mark)), "")
    return found if found or not any(mark.startswith(begun) for mark in _OPENINGS) else None
