"""A conversation as it stands: what was said, and where it lies in tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from edge_spec.chat.messages import Message
from edge_spec.chat.window import Window
from edge_spec.errors import SettingsError, StateError

__all__ = ["Conversation", "Turn"]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Where a turn lies.

    Attributes:
        n_messages: messages before the user's.
        start: tokens before it.
        kept: tokens of the conversation before it that are the first of this one's.
        rest: the others, which the template wrote differently.
        seen_from: where the window started when it was asked.
    """

    n_messages: int
    start: int
    kept: int
    rest: tuple[int, ...]
    seen_from: int


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What was said so far.

    Attributes:
        messages: the system message, if there is one, then questions and answers.
        tokens: all of it as the models read and wrote it.
        turns: one for every question.
        head: tokens of the system message.
        seen_from: where the window starts now, see ``Window``.
    """

    messages: tuple[Message, ...] = ()
    tokens: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()
    head: int = 0
    seen_from: int = 0

    @property
    def system(self) -> Message | None:
        """The system message."""
        return self.messages[0] if self.messages and self.messages[0].role == "system" else None

    @property
    def last_turn(self) -> Turn:
        """Where the last question and its answer lie.

        Raises:
            SettingsError: there was none.
        """
        if not self.turns:
            raise SettingsError("nothing has been said yet", hint="send() something first")
        return self.turns[-1]

    @property
    def answer(self) -> Message | None:
        """The answer to the last question."""
        return self.messages[-1] if self.turns and self.messages[-1].role == "assistant" else None

    @property
    def window(self) -> Window:
        """What the model sees of it."""
        return Window(self.head, self.seen_from, [turn.start for turn in self.turns])

    def undone(self) -> Conversation:
        """As it was before the last question."""
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

    def answered(self, message: Message, tokens: Iterable[int], window: Window) -> Conversation:
        """With an answer; ``tokens`` are those of the whole conversation."""
        return replace(self, messages=(*self.messages, message), tokens=tuple(tokens), seen_from=window.start)

    def to_json(self) -> dict[str, Any]:
        """Plain values; see ``located``."""
        return {
            "messages": [message.to_json() for message in self.messages],
            "tokens": list(self.tokens),
            "turns": [
                {
                    "n_messages": turn.n_messages,
                    "start": turn.start,
                    "kept": turn.kept,
                    "rest": list(turn.rest),
                    "seen_from": turn.seen_from,
                }
                for turn in self.turns
            ],
            "head": self.head,
            "seen_from": self.seen_from,
        }

    def located(self, values: Mapping[str, Any], tokens: Sequence[int]) -> Conversation:
        """The same messages with tokens and places of ``to_json``.

        Raises:
            StateError: they do not fit together.
        """
        turns = tuple(
            Turn(
                n_messages=int(turn["n_messages"]),
                start=int(turn["start"]),
                kept=int(turn["kept"]),
                rest=tuple(map(int, turn["rest"])),
                seen_from=int(turn["seen_from"]),
            )
            for turn in values["turns"]
        )
        head, seen_from = int(values["head"]), int(values["seen_from"])
        places = [0, *(turn.start for turn in turns), len(tokens)]
        ordered = all(low <= high for low, high in pairwise(places))
        seen = [head, seen_from, *(place for turn in turns for place in (turn.seen_from, turn.kept))]
        asked = [n for n, message in enumerate(self.messages) if message.role == "user"]
        if (
            not ordered
            or asked != [turn.n_messages for turn in turns]
            or not 0 <= min(seen) <= max(seen) <= max(Window().start, len(tokens))
        ):
            raise StateError("turns of the conversation lie outside of its text")
        return replace(self, tokens=tuple(tokens), turns=turns, head=head, seen_from=seen_from)
