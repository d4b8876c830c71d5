"""Messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_spec.errors import PromptError
from edge_spec.generation.thinking import answer_of, thought_of

__all__ = ["Message"]

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        content: its text; of an answer everything that the model wrote, thoughts included.
        finish_reason: why an answer ended, see ``Reply``; empty for all others.
        attempt: how many answers to the same question were rejected before this one.
        drawn: what the tokens of an answer do not tell of its draw, see ``Reply``.
        statistics: what speculation did for an answer and how long it took; two answers can be equal without.

    Raises:
        PromptError: an unknown role, or a content that is not a text.
    """

    role: str
    content: str
    finish_reason: str = ""
    attempt: int = 0
    drawn: Mapping[str, float] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise PromptError(f"{self.role!r} is not the role of a message", hint=f"use one of {', '.join(ROLES)}")
        if not isinstance(self.content, str):
            raise PromptError(f"a message is a text, not {type(self.content).__name__}")

    @property
    def is_finished(self) -> bool:
        """Whether an answer has reached its own end, so that there is nothing to continue."""
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
        """What a chat template gets. What becomes of thoughts is up to the template."""
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
        """The message from which ``to_json`` made these values.

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
