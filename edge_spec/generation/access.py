"""What the replies of a model share."""

from __future__ import annotations

from edge_spec.generation.lock import GenerationLock
from edge_spec.generation.memory_guard import MemoryGuard, Unguarded
from edge_spec.generation.session_cache import SessionCache
from edge_spec.generation.sessions import Sessions
from edge_spec.memory import Ledger
from edge_spec.speculation.loop import Speculator
from edge_spec.tokens.tokenizer import Vocabulary

__all__ = ["ModelAccess"]


class ModelAccess:
    """The models, and what it takes to use them one after the other.

    Attributes:
        speculator: target and drafter.
        vocabulary: what their tokens stand for.
        lock: whose turn it is.
        sessions: whose text is in the models' caches.
        guard: keeps replies inside the memory.
    """

    def __init__(
        self,
        speculator: Speculator,
        vocabulary: Vocabulary,
        *,
        session_cache: SessionCache | None = None,
        guard: MemoryGuard | None = None,
    ) -> None:
        self.speculator = speculator
        self.vocabulary = vocabulary
        self.lock = GenerationLock()
        self.sessions = Sessions(speculator, self.lock, session_cache or SessionCache(Ledger()))
        self.guard = guard or Unguarded()
