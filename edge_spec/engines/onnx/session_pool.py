"""A pool whose cells are those of a session of ONNX Runtime."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from edge_spec.engines.onnx.runner import Runner
from edge_spec.engines.pool import CachedPath, CachedPool
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import Closed
from edge_spec.speculation.language_model import Capabilities, NumericsProfile

__all__ = ["SessionPool"]

P = TypeVar("P", bound=CachedPath[Any])
S = TypeVar("S", bound=Runner)


class SessionPool(CachedPool[P], Generic[P, S]):
    """See ``Pool``.

    Args:
        session: nothing else may hold it: its memory is freed when the pool is closed, even while it is referred to.
        name: of the model, for people.
    """

    def __init__(
        self, session: S, settings: ModelSettings, *, name: str, profile: NumericsProfile, capabilities: Capabilities
    ) -> None:
        super().__init__(settings, n_vocab=session.n_vocab, profile=profile, capabilities=capabilities)
        self._session: S | None = session
        self._name = name

    @property
    def session(self) -> S:
        """What computes; only for as long as the pool is open."""
        if self._session is None:
            raise Closed(f"the model {self._name}")
        return self._session

    def require_open(self) -> None:
        _ = self.session

    def cancel(self) -> None:
        if self._session is not None:
            self._session.cancel()

    def resume(self) -> None:
        if self._session is not None:
            self._session.resume()

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
