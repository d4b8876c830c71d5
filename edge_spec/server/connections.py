"""Connections that do not wait for ever for the head of a request."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BoundedProtocol"]


class BoundedProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, but a client whose request line and headers do not arrive in time is cut off.

    uvicorn itself bounds only connections that are silent between two requests. Bodies are bounded where they are
    read.

    Attributes:
        head_s: how many seconds the head of a request may take.
    """

    head_s = 30.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    @property
    def _waits_for_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        if not self._waits_for_head:
            self._forget()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_s, self._give_up)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self._waits_for_head and not self.transport.is_closing():
            self.transport.close()
