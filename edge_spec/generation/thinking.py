"""Thoughts of a model: what it writes between ``<think>`` and ``</think>`` before its answer."""

from __future__ import annotations

from edge_spec.generation.text_stream import overlap

__all__ = ["Thinking", "answer_of", "thought_of"]

_OPEN, _CLOSE = "<think>", "</think>"


def thought_of(content: str) -> str:
    """The text between ``<think>`` and ``</think>``, or after ``<think>`` where that is still open."""
    return _split(content)[0].strip()


def answer_of(content: str) -> str:
    """The text outside of ``<think>`` and ``</think>``."""
    thought, answer = _split(content)
    return answer.lstrip() if thought else answer


def _split(content: str) -> tuple[str, str]:
    before, opened, rest = content.partition(_OPEN)
    if not opened or before.strip():
        return "", content
    thought, _, answer = rest.partition(_CLOSE)
    return thought, answer


class Thinking:
    """Tells thoughts from the answer while text streams in.

    Args:
        before: the text so far; some templates open the thought already.
    """

    def __init__(self, before: str = "") -> None:
        # What is looked for next; nothing, once the answer itself has begun.
        self._mark = _OPEN
        if before.lstrip().startswith(_OPEN):
            self._mark = "" if _CLOSE in before else _CLOSE
        elif before.strip():
            self._mark = ""
        self._held = ""
        self._answer_begins = False

    def push(self, text: str) -> list[tuple[bool, str]]:
        """Pairs of whether it is a thought and text, for as much as is certain now; without the marks themselves."""
        self._held += text
        pieces: list[tuple[bool, str]] = []
        while self._mark == _OPEN:
            begun = self._held.lstrip()
            if begun.startswith(_OPEN):
                self._held, self._mark = begun[len(_OPEN) :], _CLOSE
            elif _OPEN.startswith(begun):
                return pieces
            else:
                # Thoughts come before the answer or not at all.
                self._mark = ""
        if self._mark == _CLOSE:
            thought, closed, rest = self._held.partition(_CLOSE)
            if closed:
                pieces.append((True, thought))
                self._held, self._mark, self._answer_begins = rest, "", True
            else:
                sure = len(self._held) - overlap(self._held, _CLOSE)
                pieces.append((True, self._held[:sure]))
                self._held = self._held[sure:]
        if not self._mark:
            answer, self._held = self._held, ""
            if self._answer_begins:
                answer = answer.lstrip()
                self._answer_begins = not answer
            pieces.append((False, answer))
        return [piece for piece in pieces if piece[1]]

    def finish(self) -> list[tuple[bool, str]]:
        """The text has ended; what was held back."""
        held, self._held = self._held, ""
        return [(self._mark == _CLOSE, held)] if held else []
