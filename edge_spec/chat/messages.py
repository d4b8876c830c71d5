"""What is said in a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_spec.errors import PromptError
from edge_spec.generation.text_stream import overlap

__all__ = ["Message", "Thinking", "answer_of", "thought_of"]

ROLES = ("system", "user", "assistant", "tool")

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        content: its text; of an answer all that the model wrote, thoughts included.
        finish_reason: why an answer ended, see ``Reply``; empty for all others.
        attempt: how many answers to the same question were rejected before this one.
        drawn: what its tokens do not tell of the draw of an answer, see ``Reply``.
        statistics: what speculation did for an answer and how long it took; makes no difference to anything.

    Raises:
        PromptError: another role, or no text.
    """

    role: str
    content: str
    finish_reason: str = ""
    attempt: int = 0
    drawn: Mapping[str, float] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise PromptError(f"a message of the role {self.role!r}", hint=f"choose one of {', '.join(ROLES)}")
        if not isinstance(self.content, str):
            raise PromptError(f"a message is a text, not {type(self.content).__name__}")

    @property
    def is_finished(self) -> bool:
        """Whether an answer came to its own end, so that there is nothing to continue."""
        return self.finish_reason in ("eos", "stop")

    @property
    def answer(self) -> str:
        """The content without thoughts."""
        return answer_of(self.content)

    @property
    def thought(self) -> str:
        """What the model thought before it answered; empty if nothing."""
        return thought_of(self.content)

    def for_template(self) -> dict[str, Any]:
        """What a chat template gets: it decides itself what becomes of thoughts."""
        return {"role": self.role, "content": self.content}

    def to_json(self) -> dict[str, Any]:
        """Plain values; see ``from_json``."""
        values: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.role == "assistant":
            values |= {"finish_reason": self.finish_reason, "attempt": self.attempt}
        more = {"drawn": dict(self.drawn), "statistics": dict(self.statistics)}
        return values | {name: value for name, value in more.items() if value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Message:
        """The message of which ``to_json`` made these values.

        Raises:
            PromptError: something is missing or of the wrong type.
        """
        try:
            return cls(
                role=values["role"],
                content=values["content"],
                finish_reason=str(values.get("finish_reason", "")),
                attempt=int(values.get("attempt", 0)),
                statistics=dict(values.get("statistics", {})),
                drawn={str(name): float(value) for name, value in dict(values.get("drawn", {})).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise PromptError("a message lacks its role or its content") from None


def thought_of(content: str) -> str:
    """What stands between ``<think>`` and ``</think>``, or after ``<think>`` where that is still open."""
    return _split(content)[0].strip()


def answer_of(content: str) -> str:
    """What stands outside of ``<think>`` and ``</think>``."""
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
        before: the text that has gone before; some templates open the thought already.
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
        """Pairs of whether a thought and text, for as much as is certain now; the marks themselves are left out."""
        self._held += text
        pieces: list[tuple[bool, str]] = []
        while self._mark == _OPEN:
            begun = self._held.lstrip()
            if begun.startswith(_OPEN):
                self._held, self._mark = begun[len(_OPEN) :], _CLOSE
            elif _OPEN.startswith(begun):
                return pieces
            else:
                # Only what an answer begins with is a thought.
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
        """No more text comes; what was held back."""
        held, self._held = self._held, ""
        return [(self._mark == _CLOSE, held)] if held else []
