"""From tokens to text as it streams: UTF-8 never torn, stop strings never shown, thoughts told from the answer."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from edge_spec.errors import SettingsError

__all__ = ["THOUGHT_MARKS", "TextStream", "Thinking", "answer_of", "overlap", "stops_of", "thought_of"]


def stops_of(stop: object) -> tuple[str, ...]:
    """Stop strings as they are given: one, several or none.

    Raises:
        SettingsError: one is empty, or no text.
    """
    found = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Iterable) else (stop,) if stop else ()
    if not all(isinstance(text, str) and text for text in found):
        raise SettingsError(
            "must be texts that are not empty", argument="stop", hint="give texts of at least one character"
        )
    return found


class TextStream:
    """Turns the bytes of tokens into text, holding back what may still become something else.

    Held back are bytes that are not a whole character yet, and text that may be the beginning of a stop string.
    Bytes that can be no character become U+FFFD.

    Args:
        stop: strings that end the text; what precedes the first one to be completed is kept, it and all after
            it are not.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def push(self, piece: bytes) -> str:
        """Add a token's bytes; returns the text that is certain now. ``stopped`` tells if a stop string came."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """No more tokens come; returns all that was held back."""
        text = self._release(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return text
        self._held += text
        ends = [(self._held.find(stop), stop) for stop in self._stop if stop in self._held]
        if ends:
            self.stopped = True
            text, self._held = self._held[: min(ends)[0]], ""
            return text
        n = max((overlap(self._held, stop) for stop in self._stop), default=0)
        text = self._held[: len(self._held) - n]
        self._held = self._held[len(self._held) - n :]
        return text


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)


THOUGHT_MARKS = {"<think>": "</think>", "<|channel>thought": "<channel|>"}
"""What opens a thought, and what closes it: of most models, and of Gemma 4."""


def thought_of(content: str) -> str:
    """Return the text between the marks of a thought, or after the first where it is still open."""
    return "".join(text for is_thought, text in _parts(content) if is_thought).strip()


def answer_of(content: str) -> str:
    """Return the text outside of a thought and its marks."""
    return "".join(text for is_thought, text in _parts(content) if not is_thought)


def _parts(content: str) -> list[tuple[bool, str]]:
    thinking = Thinking()
    return [*thinking.push(content), *thinking.finish()]


class Thinking:
    """Tells thoughts from the answer while text streams in.

    Args:
        before: the text so far; some templates open the thought already.
    """

    def __init__(self, before: str = "") -> None:
        begun = before.lstrip()
        opened = _opened_by(begun)
        # What closes the thought; empty once the answer itself has begun, None where neither has.
        self._closing = "" if begun else None
        if opened and THOUGHT_MARKS[opened] not in begun:
            self._closing = THOUGHT_MARKS[opened]
        self._held = ""
        self._answer_begins = False

    def push(self, text: str) -> list[tuple[bool, str]]:
        """Pairs of whether it is a thought and text, for as much as is certain now; without the marks themselves."""
        self._held += text
        pieces: list[tuple[bool, str]] = []
        if self._closing is None:
            begun = self._held.lstrip()
            opened = _opened_by(begun)
            if not opened and any(mark.startswith(begun) for mark in THOUGHT_MARKS):
                return pieces
            # Thoughts come before the answer or not at all.
            self._closing = THOUGHT_MARKS[opened] if opened else ""
            self._held = begun[len(opened) :] if opened else self._held
        if self._closing:
            thought, closed, rest = self._held.partition(self._closing)
            if closed:
                pieces.append((True, thought))
                self._held, self._closing, self._answer_begins = rest, "", True
            else:
                sure = len(self._held) - overlap(self._held, self._closing)
                pieces.append((True, self._held[:sure]))
                self._held = self._held[sure:]
        if not self._closing:
            answer, self._held = self._held, ""
            if self._answer_begins:
                answer = answer.lstrip()
                self._answer_begins = not answer
            pieces.append((False, answer))
        return [piece for piece in pieces if piece[1]]

    def finish(self) -> list[tuple[bool, str]]:
        """Return what was held back of a text that has ended."""
        held, self._held = self._held, ""
        return [(bool(self._closing), held)] if held else []


def _opened_by(text: str) -> str:
    """Return the mark of a thought that a text begins with; empty if there is none."""
    return next((mark for mark in THOUGHT_MARKS if text.startswith(mark)), "")
