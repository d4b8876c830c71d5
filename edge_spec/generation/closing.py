"""What is closed when its context ends, in threads and in event loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from edge_spec.generation.reader import in_a_thread

__all__ = ["Closing"]


class Closing(ABC):
    """A context manager, plain and asynchronous, that ends with ``close``."""

    @abstractmethod
    def close(self) -> None:
        """Stop, and free what is held. Safe to call twice."""

    async def aclose(self) -> None:
        """``close`` for event loops: other tasks continue meanwhile."""
        await in_a_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.aclose()
