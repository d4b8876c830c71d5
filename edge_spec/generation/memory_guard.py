"""What keeps replies inside the memory, as a reply sees it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["GuardedReply", "MemoryGuard", "Unguarded"]


class GuardedReply(Protocol):
    """A reply, as a memory guard sees it."""

    @property
    def owner(self) -> object:
        """The conversation that it belongs to, or the reply itself: who has to be told of changes once."""

    def notice(self, sentence: str) -> None:
        """Tell the reader something."""

    def can_shrink(self, n_ctx: int) -> bool:
        """Whether it could continue in a context of ``n_ctx`` tokens."""


class MemoryGuard(Protocol):
    """Looks after memory. Every method is called by a thread that holds the generation lock."""

    @property
    def degradations(self) -> tuple[str, ...]:
        """What is given up now because memory is scarce, in order; may be read by any thread."""

    def before_reply(self, reply: GuardedReply) -> bool:
        """Called before a prompt is read: whether there is a model that can read it."""

    def before_round(self, reply: GuardedReply) -> bool:
        """Called before every round: whether the reply can continue."""

    def between_replies(self) -> None:
        """Called now and then while no reply is written."""


class Unguarded:
    """Memory that nobody looks after."""

    degradations: tuple[str, ...] = ()

    def before_reply(self, reply: GuardedReply) -> bool:
        return True

    def before_round(self, reply: GuardedReply) -> bool:
        return True

    def between_replies(self) -> None:
        """There is nothing to do."""
