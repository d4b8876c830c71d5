"""Caches of conversations that had to make way for another one."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Caches", "Holder", "Shelf"]


@dataclass(frozen=True, kw_only=True)
class Caches:
    """What the models have in their caches of a text: states by model, see ``Speculator.save``."""

    states: Mapping[str, bytes]
    text: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Memory that they take."""
        return sum(map(len, self.states.values()))


class Holder(Protocol):
    """A conversation that can be laid aside."""

    caches: Caches | None


class Shelf:
    """Conversations laid aside with their caches, the latest last; the oldest lose theirs when it gets too much.

    Args:
        limit_bytes: the most that all caches on the shelf may take together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._shelved: list[weakref.ref[Holder]] = []

    @property
    def n_bytes(self) -> int:
        """Memory that all caches on the shelf take."""
        return sum(session.caches.n_bytes for session in self._living() if session.caches)

    def lay(self, session: Holder, caches: Caches) -> None:
        """Lay a conversation aside, if there is room for its caches at all."""
        session.caches = caches if caches.n_bytes <= self.limit_bytes else None
        others = [other for other in self._living() if other is not session]
        self._shelved = [*map(weakref.ref, others), weakref.ref(session)]
        for other in others:
            if self.n_bytes <= self.limit_bytes:
                break
            other.caches = None

    def _living(self) -> list[Holder]:
        return [session for reference in self._shelved if (session := reference()) is not None]
