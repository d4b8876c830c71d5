"""The page at ``/``: plain files of the package, which use the public API as any client does."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["PAGE_PATHS", "page_routes"]

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_FOLDER = files("edge_spec.server").joinpath("page")
_FILES = {
    "/" if each.name == "index.html" else f"/{each.name}": each.name
    for each in _FOLDER.iterdir()
    if each.name.rpartition(".")[2] in _TYPES
}

PAGE_PATHS = frozenset(_FILES)
"""Paths that need no key: the page asks its user for it."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes() -> list[Route]:
    """Return a route for each file of the page."""
    return [_route(path, name) for path, name in _FILES.items()]


def _route(path: str, name: str) -> Route:
    content = _FOLDER.joinpath(name).read_bytes()
    media_type = _TYPES[name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    return Route(path, answer, methods=["GET"])
