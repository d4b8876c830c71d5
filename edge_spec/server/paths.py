"""Addresses as other clients write them: without ``/v1``, and with a slash at the end."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["UsualPaths"]

_PREFIX, _MODELS = "/v1", "/v1/models/"


class UsualPaths:
    """Routes a request to the address that was meant.

    Args:
        paths: the existing ones.
    """

    def __init__(self, app: ASGIApp, paths: Collection[str]) -> None:
        self._app = app
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = self._meant(scope["path"])
        await self._app(scope, receive, send)

    def _meant(self, path: str) -> str:
        if path in self._paths:
            return path
        without = path.rstrip("/")
        for meant in (without, _PREFIX + without, without.removeprefix(_PREFIX)):
            if meant in self._paths or (meant.startswith(_MODELS) and path.startswith(("/models/", _MODELS))):
                return meant
        return path
