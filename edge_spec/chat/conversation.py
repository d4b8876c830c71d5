"""The state of a conversation: its messages, and their positions in tokens."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

from edge_spec.chat.window import Window
from edge_spec.errors import BAD_RECORD, PromptError, SettingsError, StateError
from edge_spec.generation.control_names import WrittenText
from edge_spec.generation.thoughts import answer_of, is_in_channels, own_marks, thought_of
from edge_spec.generation.tools.calls import ToolCall, without_calls

__all__ = ["Conversation", "Message", "Turn", "asked_together"]

ROLES = ("system", "user", "assistant", "tool")

_NOTHING: Mapping[str, Any] = {}
"""Shared value of most messages' other fields, since a program may hold many conversations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        content: its text; of an answer everything that the model wrote, thoughts and calls included.
        finish_reason: why an answer ended, see ``Reply``; empty for all others.
        attempt: how many answers to the same question were rejected before this one.
        drawn: state of an answer's sampler that its tokens do not determine, see ``Reply``.
        statistics: what speculation did for an answer and how long it took; two answers can be equal without.
        tool_calls: the functions that an answer calls.
        tool_call_id: the call that a tool's message is the result of.

    Raises:
        PromptError: an unknown role, or a content that is not a text.
    """

    role: str
    content: str
    finish_reason: str = ""
    attempt: int = 0
    drawn: Mapping[str, float] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict, compare=False)
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise PromptError(f"{self.role!r} is not the role of a message", hint=f"use one of {', '.join(ROLES)}")
        if not isinstance(self.content, str):
            raise PromptError(f"a message is a text, not {type(self.content).__name__}")
        for name in ("drawn", "statistics"):
            if not getattr(self, name):
                object.__setattr__(self, name, _NOTHING)

    @property
    def is_finished(self) -> bool:
        """Whether an answer is complete, so that it cannot be continued."""
        return self.finish_reason in ("eos", "stop")

    @property
    def asks(self) -> bool:
        """Whether the message expects an answer: a question, or the result of a call."""
        return self.role == "user" or (self.role == "tool" and bool(self.tool_call_id))

    @property
    def answer(self) -> str:
        """The content without thoughts and calls."""
        return self._without_calls["content"] or "" if self.tool_calls else answer_of(self.content)

    @property
    def thought(self) -> str:
        """The thought before the answer; empty if there is none."""
        return self._without_calls.get("reasoning_content", "") if self.tool_calls else thought_of(self.content)

    @property
    def _without_calls(self) -> dict[str, Any]:
        return without_calls(self.content, self.tool_calls, is_cut=not self.is_finished)

    def for_template(self) -> dict[str, Any]:
        """Return the message for a chat template, which decides about thoughts."""
        if self.role == "tool" and self.tool_call_id:
            return {"role": self.role, "content": self.content, "tool_call_id": self.tool_call_id}
        if self.tool_calls:
            message = self._without_calls
            calls = [call.for_template() for call in self.tool_calls]
            return {**message, "content": message["content"] or "", "tool_calls": calls}
        if self.role == "assistant" and is_in_channels(self.content):
            # gpt-oss's template raises an error for its own marks.
            return {"role": self.role, "content": self.answer, "thinking": self.thought}
        own = own_marks(self.content) if self.role == "assistant" else ()
        return {"role": self.role, "content": WrittenText.of(self.content, own) if own else self.content}

    def to_json(self) -> dict[str, Any]:
        """JSON values; see ``from_json``."""
        values: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.role == "assistant":
            values |= {"finish_reason": self.finish_reason, "attempt": self.attempt}
        if self.tool_calls:
            values["tool_calls"] = [call.to_json() for call in self.tool_calls]
        if self.tool_call_id:
            values["tool_call_id"] = self.tool_call_id
        more = {"drawn": dict(self.drawn), "statistics": dict(self.statistics)}
        return values | {name: value for name, value in more.items() if value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Message:
        """Return the message from which ``to_json`` made these values.

        Raises:
            PromptError: something is missing or of the wrong type.
        """
        try:
            calls = tuple(ToolCall.from_json(call) for call in values.get("tool_calls") or ())
            return cls(
                role=values["role"],
                content=values.get("content") or "" if calls else values["content"],
                tool_calls=calls,
                tool_call_id=str(values.get("tool_call_id") or ""),
                finish_reason=str(values.get("finish_reason", "")),
                attempt=int(values.get("attempt", 0)),
                statistics=dict(values.get("statistics", {})),
                drawn={str(name): float(value) for name, value in dict(values.get("drawn", {})).items()},
            )
        except BAD_RECORD:
            raise PromptError("a message lacks its role or its content") from None


def asked_together(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Return messages in groups: consecutive results of calls form one, every other message one of its own."""
    groups: list[tuple[Message, ...]] = []
    for message in messages:
        is_result = message.role == "tool" and message.asks
        if is_result and groups and groups[-1][0].role == "tool" and groups[-1][0].asks:
            groups[-1] = (*groups[-1], message)
        else:
            groups.append((message,))
    return groups


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A question, or results of calls, and the answer to it, as positions in the conversation.

    Attributes:
        n_messages: number of messages before the question.
        start: index of its first token.
        kept: how many tokens of the conversation before it are unchanged at the beginning of this one.
        rest: the tokens after those, which the template has rendered differently since; ``undone`` restores them.
        seen_from: where the window started when the question was asked.
    """

    n_messages: int
    start: int
    kept: int
    rest: tuple[int, ...]
    seen_from: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """Messages and their rendered tokens.

    Attributes:
        messages: the system message, if there is one, then questions, answers, and results of calls.
        tokens: all of them, as the models read and wrote them; four bytes each.
        turns: one for every answer that was asked for.
        head: tokens of the system message.
        seen_from: where the window starts now, see ``Window``.
    """

    messages: tuple[Message, ...] = ()
    tokens: Sequence[int] = ()
    turns: tuple[Turn, ...] = ()
    head: int = 0
    seen_from: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", array("i", self.tokens))

    @property
    def system(self) -> Message | None:
        """The system message."""
        return self.messages[0] if self.messages and self.messages[0].role == "system" else None

    @property
    def last_turn(self) -> Turn:
        """The last question and its answer.

        Raises:
            SettingsError: nothing has been asked yet.
        """
        if not self.turns:
            raise SettingsError("nothing has been said yet", hint="send a message first")
        return self.turns[-1]

    @property
    def answer(self) -> Message | None:
        """The message that answers the last question."""
        return self.messages[-1] if self.turns and self.messages[-1].role == "assistant" else None

    @property
    def window(self) -> Window:
        """The part of the conversation that the model sees."""
        # The window must not separate results from their calls.
        return Window(self.head, self.seen_from, [turn.start for turn in self.turns if self._is_question(turn)])

    @property
    def n_questions(self) -> int:
        """The number of questions."""
        return sum(map(self._is_question, self.turns))

    def _is_question(self, turn: Turn) -> bool:
        return self.messages[turn.n_messages].role == "user"

    def undone(self) -> Conversation:
        """The conversation before the last question."""
        turn = self.last_turn
        before = Conversation(messages=self.messages[: turn.n_messages])
        if len(self.turns) == 1:
            return before
        return replace(
            before,
            tokens=(*self.tokens[: turn.kept], *turn.rest),
            turns=self.turns[:-1],
            head=self.head,
            seen_from=turn.seen_from,
        )

    def answered(self, message: Message, tokens: Sequence[int], window: Window) -> Conversation:
        """Return the conversation with an answer; ``tokens`` are those of the whole conversation."""
        return replace(self, messages=(*self.messages, message), tokens=tokens, seen_from=window.start)

    def to_json(self) -> dict[str, Any]:
        """JSON values; see ``located``."""
        return {
            "messages": [message.to_json() for message in self.messages],
            "tokens": list(self.tokens),
            "turns": [{**asdict(turn), "rest": list(turn.rest)} for turn in self.turns],
            "head": self.head,
            "seen_from": self.seen_from,
        }

    def located(self, values: Mapping[str, Any], tokens: Sequence[int]) -> Conversation:
        """Return the same messages with the tokens and turns that ``to_json`` has saved.

        Raises:
            StateError: they do not fit together.
        """
        places = ("n_messages", "start", "kept", "seen_from")
        turns = tuple(
            Turn(rest=tuple(map(int, turn["rest"])), **{name: int(turn[name]) for name in places})
            for turn in values["turns"]
        )
        head, seen_from = int(values["head"]), int(values["seen_from"])
        ordered = all(low <= high for low, high in pairwise([0, *(turn.start for turn in turns), len(tokens)]))
        seen = [head, seen_from, *(place for turn in turns for place in (turn.seen_from, turn.kept))]
        n_messages = [len(group) for group in asked_together(self.messages)]
        starts = accumulate(n_messages, initial=0)
        asked = [n for n in starts if n < len(self.messages) and self.messages[n].asks]
        if (
            not ordered
            or asked != [turn.n_messages for turn in turns]
            or not 0 <= min(seen) <= max(seen) <= max(Window().start, len(tokens))
        ):
            raise StateError("turns of the conversation lie outside of its text", hint="load another file")
        return replace(self, tokens=tokens, turns=turns, head=head, seen_from=seen_from)
