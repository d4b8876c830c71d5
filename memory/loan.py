"""Memory of a request that grows and shrinks, claimed from a ledger in steps."""

from __future__ import annotations

import threading
from typing import Self

from edge_spec.memory.ledger import Ledger
from edge_spec.memory.usage import trim_heap

__all__ = ["Loan"]

_STEP_BYTES = 1 << 18
"""The first step is free: most requests are small, and a claim for each would cost more than it is worth."""

_NOTED_BYTES = 1 << 20
"""Above this size the allocator is asked to return memory to the system."""


class Loan:
    """Bytes that are held temporarily. Usable from any thread.

    Args:
        ledger: where they are claimed.
        name: what they are.
    """

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._name = name
        self._lock = threading.Lock()
        self._held = self._claimed = self._most = 0
        self._is_over = False

    @property
    def held_bytes(self) -> int:
        """The bytes held now."""
        return self._held

    def grow(self, n_bytes: int) -> None:
        """Claim more bytes before they are allocated; does nothing after ``end``.

        Raises:
            BudgetExceeded: the budget has no room for it; nothing was added.
        """
        with self._lock:
            if self._is_over:
                return
            held = self._held + n_bytes
            wanted = held // _STEP_BYTES * _STEP_BYTES
            if wanted > self._claimed:
                self._ledger.claim("server", self._name, wanted - self._claimed)
                self._claimed = wanted
            self._held = held
            self._most = max(self._most, held)

    def shrink(self, n_bytes: int) -> None:
        """Reduce the bytes held. The claim stays until ``end``, since the loan may grow again."""
        with self._lock:
            self._held = max(0, self._held - n_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end()

    def end(self) -> None:
        """Return all bytes. Safe to call twice."""
        with self._lock:
            self._is_over, self._held = True, 0
            claimed, self._claimed = self._claimed, 0
        if claimed:
            self._ledger.give_back("server", self._name, claimed)
        if self._most > _NOTED_BYTES:
            self._most = 0
            trim_heap()
