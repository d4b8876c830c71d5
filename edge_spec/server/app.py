"""The addresses of the server and what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge_spec.model import TextModel
from edge_spec.server.answering import chunks, whole
from edge_spec.server.bodies import ClientGone, read_json
from edge_spec.server.errors import ApiError, api_error
from edge_spec.server.fields import ChatFields, CompletionFields
from edge_spec.server.metrics import CONTENT_TYPE
from edge_spec.server.pages import page_routes
from edge_spec.server.security import Gate
from edge_spec.server.service import Service
from edge_spec.server.settings import ServerSettings
from edge_spec.server.streaming import EventStream, unless_gone
from edge_spec.server.writing import Work

__all__ = ["make_app"]

Endpoint = Callable[[Request], Awaitable[Response]]

_GONE = 499
"""What logs say where the client went away; nobody gets it."""


def make_app(model: TextModel, settings: ServerSettings, on_start: Callable[[Service], object]) -> Starlette:
    """The application.

    Args:
        on_start: gets what is served, in the event loop, before the first request.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = service = Service(model, settings)
        on_start(service)
        try:
            yield
        finally:
            await service.thread.close()

    routes = [
        _counted("POST", "/v1/chat/completions", _chat),
        _counted("POST", "/v1/completions", _completion),
        _counted("GET", "/v1/models", _models),
        _counted("GET", "/v1/models/{name:path}", _model),
        Route("/health", _health, methods=["GET"]),
        Route("/metrics", _metrics, methods=["GET"]),
        *page_routes(),
    ]
    middleware = [Middleware(Gate, settings=settings)]
    if settings.allowed_origins:
        origins = [origin.rstrip("/") for origin in settings.allowed_origins]
        middleware.append(Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]))
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={HTTPException: _not_found, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return app


def _counted(method: str, path: str, endpoint: Endpoint) -> Route:
    """A route whose errors have OpenAI's form. Its requests are counted, and each has a line in the log."""

    async def answer(request: Request) -> Response:
        service: Service = request.app.state.service
        start = perf_counter()
        try:
            response = await endpoint(request)
        except ClientGone:
            response = Response(status_code=_GONE)
        except Exception as error:
            told = api_error(error)
            response = JSONResponse(told.to_json(), told.status, told.headers)
            if told.status == 500:
                service.settings.log(f"{method} {path}: {type(error).__name__}: {error}")
        service.metrics.asked(path, response.status_code)
        if not isinstance(response, EventStream):
            seconds = perf_counter() - start
            service.settings.log(f"{method} {path} {response.status_code}{_tokens(request)}, {seconds:.1f} s")
        return response

    return Route(path, answer, methods=[method])


def _tokens(request: Request) -> str:
    """What was read and written for a request."""
    return getattr(request.state, "tokens", "")


async def _chat(request: Request) -> Response:
    return await _write(request, ChatFields)


async def _completion(request: Request) -> Response:
    return await _write(request, CompletionFields)


async def _write(request: Request, kind: type[ChatFields] | type[CompletionFields]) -> Response:
    service: Service = request.app.state.service
    body = await read_json(request, service.settings.max_body_bytes)
    prepared = await unless_gone(request.receive, service.prepare(kind, body))
    work = service.begin(prepared)
    if prepared.asked.stream:
        start = perf_counter()

        def close() -> None:
            work.stop()
            seconds = perf_counter() - start
            service.settings.log(f"POST {request.url.path} 200, streamed{_told(work)}, {seconds:.1f} s")

        return EventStream(chunks(work, prepared), service.settings.timeout_s, close)

    async def answer() -> dict[str, Any]:
        async with asyncio.timeout(service.settings.timeout_s):
            return await whole(work, prepared)

    with work:
        found = await unless_gone(request.receive, answer())
    request.state.tokens = _told(work)
    return JSONResponse(found)


def _told(work: Work) -> str:
    """What has been read and written, for the log."""
    done = [answer.statistics for answer in work.answers]
    n_read, n_written, n_drafted, n_accepted = (
        sum(getattr(each, name) for each in done) for name in ("prompt_tokens", "tokens", "drafted", "accepted")
    )
    return f", {n_read} tokens read, {n_written} written, {n_accepted} of {n_drafted} drafted ones accepted"


async def _models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_described(request.app.state.service)]})


async def _model(request: Request) -> Response:
    service: Service = request.app.state.service
    service.require_name(request.path_params["name"])
    return JSONResponse(_described(service))


def _described(service: Service) -> dict[str, Any]:
    model = service.model
    return {
        "id": service.settings.name,
        "object": "model",
        "created": 0,
        "owned_by": "edge-spec",
        "context_length": model.n_ctx,
        "speculation": model.mode,
        "identity": model.identity,
        "profile": {"name": model.profile.name, **dict(model.profile.facts)},
    }


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _metrics(request: Request) -> Response:
    return Response(request.app.state.service.metrics.text(), media_type=CONTENT_TYPE)


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = {
        404: "there is nothing at this address; chat completions are at /v1/chat/completions",
        405: "this address is not asked in this way; see OpenAI's API",
    }.get(status, "the request cannot be answered")
    told = ApiError(status, message, code="unknown_url" if status == 404 else None)
    return JSONResponse(told.to_json(), status, getattr(error, "headers", None))


async def _failed(request: Request, error: Exception) -> Response:
    told = api_error(error)
    return JSONResponse(told.to_json(), told.status, told.headers)
