"""What a reply works in: its place in the context of the models, and the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edge_spec.errors import PromptTooLong
from edge_spec.generation.prefix_cache import CachedPrompt
from edge_spec.sampling import Sampler
from edge_spec.speculation.loop import Slot

__all__ = ["Context", "GuardedReply", "MemoryGuard", "Notice"]


class Notice(Protocol):
    """Tells the reader of a reply something."""

    def __call__(self, sentence: str, *, departs: bool = False) -> object:
        """Tell a sentence.

        Args:
            departs: from here on the text may differ from the one that the same request writes undisturbed.
        """


class Context:
    """Brings the text of a reply into the models, and keeps it inside their context: here, of a reply of its own.

    Args:
        session: owner of the text in the prefix cache: a conversation or a ``CachedPrompt``; None if it is not kept.

    Attributes:
        session: the same.
        n_reused: how many tokens of the text were not read, since the caches held them.
        shares: whether other texts may begin with its cells: those that were moved have bits of their own.
        departs: whether what is written may differ from the same request's undisturbed text.
    """

    n_reused = 0
    shares = True
    departs = False

    def __init__(self, session: object | None = None) -> None:
        self.session = session

    def require_room(self, n_tokens: int, n_ctx: int) -> None:
        """Refuse a text of ``n_tokens`` that leaves no room for a reply.

        Raises:
            PromptTooLong: it cannot be made to fit either.
        """
        if n_tokens >= n_ctx:
            raise PromptTooLong(n_prompt=n_tokens, n_ctx=n_ctx)

    def may_share(self, n_tokens: int, n_ctx: int) -> bool:
        """Return whether a text of ``n_tokens`` may begin with the cells of another one."""
        return self.shares

    def begin(self, slot: Slot, text: Sequence[int], sampler: Sampler, *, resumed: bool, notice: Notice) -> None:
        """Let the models follow ``text``, the prompt and what is written of the reply; reading it comes next.

        Args:
            resumed: the models' caches hold what it begins with: here, cells with the bits that reading it would give.
            notice: tells the reader something.
        """
        self.require_room(len(text), slot.model.n_ctx)
        slot.begin(text, sampler, reuse=resumed)
        if isinstance(self.session, CachedPrompt):
            self.n_reused = min(slot.model.n_past, len(text))
            self.session.n_read, self.session.profile = len(text) - 1, slot.model.profile.name

    def make_room(self, slot: Slot, notice: Notice) -> bool:
        """Take something out of a context that is full; False if nothing can go, and the reply then ends."""
        return False

    def can_shrink(self, slot: Slot, n_ctx: int) -> bool:
        """Whether the reply could continue in a context of ``n_ctx`` tokens, if necessary after ``make_room``."""
        return len(slot.text) < n_ctx


class GuardedReply(Protocol):
    """A reply, as a memory guard sees it."""

    @property
    def owner(self) -> object:
        """The conversation that it belongs to, or the reply itself: who has to be told of changes once."""

    def notice(self, sentence: str, *, departs: bool = False) -> None:
        """Tell the reader something; see ``Notice``."""

    def can_shrink(self, n_ctx: int) -> bool:
        """Return whether it could continue in a context of ``n_ctx`` tokens."""


class MemoryGuard:
    """Looks after memory; this one lets everything pass. Its methods are called by the worker."""

    @property
    def degradations(self) -> tuple[str, ...]:
        """What is reduced or dropped now because memory is scarce, in order; may be read by any thread."""
        return ()

    def before_reply(self, reply: GuardedReply) -> bool:
        """Called before a prompt is read: whether there is a model that can read it."""
        return True

    def before_round(self, replies: Sequence[GuardedReply]) -> bool:
        """Called before every round: whether the replies that are being written can continue."""
        return True

    def between_replies(self) -> None:
        """Called now and then while no reply is written."""

    def give_way(self) -> bool:
        """Free memory for others by a step that changes no text, while no reply is written; return whether there was
        one."""
        return False
