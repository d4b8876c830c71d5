"""A drafter around a drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edge_spec.sampling import Sampler
from edge_spec.speculation.drafters.base import Choice, Drafter
from edge_spec.speculation.followed_text import FollowedText
from edge_spec.speculation.pause import Pause
from edge_spec.speculation.round import Round
from edge_spec.speculation.tree import Tree

__all__ = ["WrappingDrafter"]


class WrappingDrafter(Drafter):
    """Hands everything on to another drafter; what wraps one overrides what it changes.

    Attributes:
        inner: the other drafter.
    """

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.name = inner.name

    @property
    def last_name(self) -> str:
        return self.inner.last_name

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self.inner.begin(prompt, sampler)

    @property
    def pause(self) -> Pause:
        return self.inner.pause

    def limit(self, left: int) -> int:
        return self.inner.limit(left)

    def read(self, most: int | None = None) -> bool:
        return self.inner.read(most)

    @property
    def n_unread(self) -> int:
        return self.inner.n_unread

    def draft(self, limit: int) -> Tree:
        return self.changed(self.inner.draft(limit), limit)

    def draft_while(self, limit: int, worth_more: Callable[[Tree], bool]) -> Tree:
        return self.changed(self.inner.draft_while(limit, worth_more), limit)

    def changed(self, draft: Tree, limit: int) -> Tree:
        """Return what becomes of a draft of the other drafter."""
        return draft

    def accept(self, tokens: Sequence[int]) -> None:
        self.inner.accept(tokens)

    def learn(self, done: Round) -> None:
        self.inner.learn(done)

    def rollback(self, length: int) -> None:
        self.inner.rollback(length)

    def save(self) -> dict[str, bytes]:
        return self.inner.save()

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        self.inner.restore(states, text)

    def close(self) -> None:
        self.inner.close()

    @property
    def followed(self) -> Mapping[str, FollowedText]:
        return self.inner.followed

    @property
    def choices(self) -> Mapping[str, Choice]:
        return self.inner.choices

    @property
    def held_bytes(self) -> int:
        return self.inner.held_bytes
