"""Check origin, host and key of a request before anything else."""

from __future__ import annotations

import hmac
import re
import socket

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from edge_spec.server.connections import is_crowded
from edge_spec.server.errors import ApiError
from edge_spec.server.pages import PAGE_PATHS
from edge_spec.server.request_log import refused
from edge_spec.server.settings import ServerSettings, is_address

__all__ = ["Gate"]

_PUBLIC = PAGE_PATHS | {"/health"}
"""Paths that need no key."""

_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s\[\]:@/\\]+))(?::[0-9]{1,5})?")
"""An address of version 6 in brackets or any other name, and a port."""

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class Gate:
    """Refuses requests of other web pages, of names that are not this server's, and without the key.

    A page from elsewhere can make a browser on this computer send requests here. It then sends the page's ``Origin``,
    or, if the page's own name suddenly leads here (DNS rebinding), that name as ``Host``.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._key = settings.api_key.encode() if settings.api_key is not None else None
        self._hosts = _LOCAL | {settings.host.lower(), *map(str.lower, settings.allowed_hosts)}
        if settings.is_open:
            self._hosts |= {socket.gethostname().lower()}
        # With a key every host is accepted: a page from elsewhere does not know the key.
        self._any_host = self._key is not None
        # An open server has many addresses, which no page can claim as its own name.
        self._any_address = settings.is_open
        self._origins = {origin.lower().rstrip("/") for origin in settings.allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                if is_crowded(scope):
                    raise _too_many_connections()
                self._check_host(headers)
                self._check_origin(headers, scope["path"])
                if scope["method"] != "OPTIONS" and scope["path"] not in _PUBLIC:
                    self._check_key(headers)
            except ApiError as error:
                await refused(HTTPConnection(scope), error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        named = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if named is None or not (self._any_host or self._is_own((named[1] or named[2]).lower())):
            raise ApiError(
                403, "this is not the name of this server; use its address, or start it with --allow-host", code="host"
            )

    def _is_own(self, name: str) -> bool:
        return name in self._hosts or (self._any_address and is_address(name))

    def _check_origin(self, headers: Headers, path: str) -> None:
        origins = [origin.lower() for origin in headers.getlist("origin")]
        if not origins and path not in _PUBLIC and headers.get("sec-fetch-site") == "cross-site":
            # A request embedded or linked by another page has no origin; it may lead to our page only.
            origins = ["null"]
        for origin in origins:
            is_own = origin.partition("://")[2] == headers["host"].lower()
            if not is_own and origin not in self._origins:
                raise ApiError(
                    403, "pages from elsewhere may not use this server; start it with --allow-origin", code="origin"
                )

    def _check_key(self, headers: Headers) -> None:
        if self._key is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            # Anthropic's clients send it so.
            given = headers.get("x-api-key", "")
        if not hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._key):
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _too_many_connections() -> ApiError:
    return ApiError(
        503,
        "too many connections are open; ask again in 1 s",
        code="too_many_connections",
        headers={"Retry-After": "1", "Connection": "close"},
    )
