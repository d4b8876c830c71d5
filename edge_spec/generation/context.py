"""What a reply works in: the models and their lock, its place in their context, and the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edge_spec.errors import PromptTooLong
from edge_spec.generation.lock import GenerationLock
from edge_spec.generation.session_cache import SessionCache, Sessions
from edge_spec.memory import Ledger
from edge_spec.sampling import Sampler
from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.loop import Speculator
from edge_spec.tokens.tokenizer import Vocabulary

__all__ = ["Context", "GuardedReply", "MemoryGuard", "ModelAccess"]

Notice = Callable[[str], object]


class Context:
    """Brings the text of a reply into the models, and keeps it inside their context: here, of a reply of its own.

    Attributes:
        session: the conversation whose text it is, and whose caches are resumed for it; None for a reply of its own.
        n_reused: how many tokens of the text were not read, since the caches held them.
    """

    session: object | None = None
    n_reused = 0

    def require_room(self, n_tokens: int, n_ctx: int) -> None:
        """Refuse a text of ``n_tokens`` that leaves no room for a reply.

        Raises:
            PromptTooLong: it cannot be made to fit either.
        """
        if n_tokens >= n_ctx:
            raise PromptTooLong(n_prompt=n_tokens, n_ctx=n_ctx)

    def enter(self, sessions: Sessions, text: Sequence[int], model: LanguageModel) -> bool:
        """Resume the caches that serve ``text``; whether there are any. Needs the generation lock."""
        return sessions.resume(self.session)

    def begin(
        self, speculator: Speculator, text: Sequence[int], sampler: Sampler, *, resumed: bool, notice: Notice
    ) -> None:
        """Let the models follow ``text``, the prompt and what is written of the reply; ``Speculator.read`` comes next.

        Nothing is reused here: an equal prompt gets an equal reply, whatever came before.

        Args:
            resumed: the models' caches hold the text of ``session``, as far as it goes.
            notice: tells the reader something.
        """
        self.require_room(len(text), speculator.model.n_ctx)
        speculator.begin(text, sampler, reuse=False)

    def make_room(self, speculator: Speculator, notice: Notice) -> bool:
        """Take something out of a context that is full; False if nothing can go, and the reply then ends."""
        return False

    def can_shrink(self, speculator: Speculator, n_ctx: int) -> bool:
        """Whether the reply could continue in a context of ``n_ctx`` tokens, if necessary after ``make_room``."""
        return len(speculator.text) < n_ctx


class GuardedReply(Protocol):
    """A reply, as a memory guard sees it."""

    @property
    def owner(self) -> object:
        """The conversation that it belongs to, or the reply itself: who has to be told of changes once."""

    def notice(self, sentence: str) -> None:
        """Tell the reader something."""

    def can_shrink(self, n_ctx: int) -> bool:
        """Return whether it could continue in a context of ``n_ctx`` tokens."""


class MemoryGuard:
    """Looks after memory; this one lets everything pass. Methods are called with the generation lock held."""

    @property
    def degradations(self) -> tuple[str, ...]:
        """What is reduced or dropped now because memory is scarce, in order; may be read by any thread."""
        return ()

    def before_reply(self, reply: GuardedReply) -> bool:
        """Called before a prompt is read: whether there is a model that can read it."""
        return True

    def before_round(self, reply: GuardedReply) -> bool:
        """Called before every round: whether the reply can continue."""
        return True

    def between_replies(self) -> None:
        """Called now and then while no reply is written."""


class ModelAccess:
    """What all replies of a model share.

    Attributes:
        speculator: target and drafter.
        vocabulary: what their tokens stand for.
        lock: lets one reply after the other use them.
        sessions: suspends and resumes conversations.
        guard: keeps replies inside the memory.
    """

    def __init__(
        self,
        speculator: Speculator,
        vocabulary: Vocabulary,
        session_cache: SessionCache | None = None,
        guard: MemoryGuard | None = None,
    ) -> None:
        self.speculator = speculator
        self.vocabulary = vocabulary
        self.lock = GenerationLock()
        self.sessions = Sessions(speculator, self.lock, session_cache or SessionCache(Ledger()))
        self.guard = guard or MemoryGuard()
