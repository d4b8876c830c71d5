"""The addresses of the server and what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge_spec.generation.reader import in_a_thread
from edge_spec.memory import Loan
from edge_spec.model import TextModel
from edge_spec.server.beginning import Beginning, model_of
from edge_spec.server.bodies import ClientGone
from edge_spec.server.dialect import Dialect, Writing
from edge_spec.server.dialects import DIALECTS
from edge_spec.server.errors import ApiError, api_error
from edge_spec.server.jobs import JobMaker
from edge_spec.server.loader import Loader
from edge_spec.server.metrics import CONTENT_TYPE
from edge_spec.server.models import Models, ServedModel
from edge_spec.server.pages import page_routes
from edge_spec.server.paths import UsualPaths
from edge_spec.server.request_log import GONE, Record, RequestLog, record_of, refused
from edge_spec.server.security import Gate
from edge_spec.server.service import Service
from edge_spec.server.settings import ServerSettings
from edge_spec.server.streaming import JsonPieces, PieceStream, unless_gone
from edge_spec.server.writing import Work

__all__ = ["make_app"]

_LONGEST_PATH = 200

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(source: TextModel | Loader, settings: ServerSettings, on_start: Callable[[Service], object]) -> Starlette:
    """Yield the application.

    Args:
        source: the only model, or what opens the models.
        on_start: gets what is served, in the event loop, before the first request.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = service = Service(source, settings)
        on_start(service)
        try:
            yield
        finally:
            await service.close()

    routes = [_route("GET", "/health", _health), _route("GET", "/metrics", _metrics), *page_routes()]
    for dialect in DIALECTS:
        routes += [_route("POST", path, partial(_write, dialect, make)) for path, make in dialect.writes.items()]
        routes += [_route("POST", path, partial(_convert, make)) for path, make in dialect.converts.items()]
        routes += [_route("POST", path, partial(_describe, make)) for path, make in dialect.describes.items()]
        routes += [_route("GET", path, partial(_tell, make)) for path, make in dialect.tells.items()]
    paths = [route.path for route in routes]
    middleware = [Middleware(UsualPaths, paths=paths), Middleware(RequestLog, paths=paths)]
    if settings.allowed_origins:
        # Outside of the gate, so that an allowed page can read why it was refused.
        origins = [origin.rstrip("/") for origin in settings.allowed_origins]
        anything: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["*"], "allow_private_network": True}
        middleware.append(Middleware(CORSMiddleware, allow_origins=origins, **anything))
    middleware.append(Middleware(Gate, settings=settings))
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={HTTPException: _not_found, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return app


def _route(method: str, path: str, endpoint: Endpoint) -> Route:
    """Return a route whose errors have the form of its dialect."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientGone:
            return Response(status_code=GONE)
        except Exception as error:
            failure = api_error(error)
            if failure.status == 500:
                service: Service = request.app.state.service
                service.settings.log(f"{method} {path}: {type(error).__name__}: {error}")
            return refused(request, failure)

    return Route(path, answer, methods=[method])


async def _write(dialect: Dialect, make: Writing, request: Request) -> Response:
    service: Service = request.app.state.service
    deadline = asyncio.get_running_loop().time() + service.settings.timeout_s
    record = record_of(request)
    lent = Loan(service.ledger, "memory for requests")
    try:
        async with asyncio.timeout_at(deadline):
            raw = await service.bodies.read(request, lent)
        # A full queue refuses a request before any work is done for it.
        service.queue.join()
    except BaseException:
        lent.end()
        raise
    beginning = Beginning(service, dialect, make, raw, lent, deadline)
    try:
        await unless_gone(request.receive, beginning.wait())
    except BaseException:
        beginning.close()
        # Others may use the model only when the request has left it.
        await asyncio.wait((beginning.task,))
        raise

    def stream(pieces: AsyncIterator[bytes]) -> PieceStream:
        given_up, progress = beginning.given_up, lambda: beginning.progress
        record.is_stream = True
        return PieceStream(
            pieces, dialect, service.settings, deadline, record, given_up, beginning.close, progress=progress
        )

    beginning.task.add_done_callback(partial(_summarize, record))
    if beginning.is_late:
        return stream(beginning.pieces())
    begun = await beginning.task
    if isinstance(begun, dict):
        return JSONResponse(begun)
    response, work = begun
    _summarize(record, beginning.task)
    if response.job.is_stream:
        return stream(response.chunks(work))

    async def answer() -> list[bytes | bytearray]:
        async with asyncio.timeout_at(deadline):
            return await response.whole(work)

    try:
        whole = await unless_gone(request.receive, answer())
    except BaseException:
        work.close()
        raise
    return JsonPieces(whole, deadline + service.settings.last_words_s, work.close)


def _summarize(record: Record, begun: asyncio.Future[Any]) -> None:
    """Let the log tell what is read and written for a request that has begun."""
    if not begun.cancelled() and begun.exception() is None and not isinstance(begun.result(), dict):
        response, work = begun.result()
        record.summary = lambda: _summary(work, len(response.job.requests[0].notices))


def _summary(work: Work, n_not_kept: int) -> str:
    """Return the tokens read and written, and the number of schemas not enforced, for the log."""
    done = [answer.statistics for answer in work.answers]
    n_read, n_written, n_drafted, n_accepted = (
        sum(getattr(each, name) for each in done) for name in ("prompt_tokens", "tokens", "drafted", "accepted")
    )
    noticed = f", schemas of tools not kept: {n_not_kept}" if n_not_kept else ""
    return f", {n_read} tokens read, {n_written} written, {n_accepted} of {n_drafted} drafted ones accepted{noticed}"


async def _convert(make: Callable[[JobMaker, dict[str, Any]], Any], request: Request) -> Response:
    service: Service = request.app.state.service
    deadline = asyncio.get_running_loop().time() + service.settings.timeout_s

    async def converted() -> Any:
        served, body, raw = await _asked(service, request, lent)
        lease = await service.models.lease(served, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                return await service.prepare(make, lease, body, raw, lent)
        finally:
            lease.end()

    with Loan(service.ledger, "memory for requests") as lent:
        return JSONResponse(await converted())


async def _describe(make: Callable[[Models, ServedModel, dict[str, Any]], Any], request: Request) -> Response:
    service: Service = request.app.state.service
    async with asyncio.timeout(service.settings.timeout_s):
        with Loan(service.ledger, "memory for requests") as lent:
            served, body, _ = await _asked(service, request, lent)
            return JSONResponse(await in_a_thread(lambda: make(service.models, served, body)))


async def _asked(service: Service, request: Request, lent: Loan) -> tuple[ServedModel, dict[str, Any], bytes]:
    """Return the model that a request names, and its body."""
    raw = await service.bodies.read(request, lent)
    body = await unless_gone(request.receive, service.parsed(raw, lent))
    return await service.models.find(model_of(body)), body, raw


async def _tell(make: Callable[[Models, ServedModel | None], Any], request: Request) -> Response:
    models, name = request.app.state.service.models, request.path_params.get("name")
    served = await models.find(name) if name is not None else None
    # Headers of files may be read for it.
    return JSONResponse(await in_a_thread(lambda: make(models, served)))


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _metrics(request: Request) -> Response:
    return Response(request.app.state.service.metrics.text(), media_type=CONTENT_TYPE)


async def _not_found(request: Request, error: Exception) -> Response:
    status, headers = getattr(error, "status_code", 404), dict(getattr(error, "headers", None) or {})
    if status == 405:
        return refused(
            request, ApiError(405, f"ask this address with {headers['Allow']}", code="wrong_method", headers=headers)
        )
    if status == 404:
        path = ascii(request.scope["path"])[1:-1][:_LONGEST_PATH]
        message = f"there is nothing at {path}; chat completions are at /v1/chat/completions"
        return refused(request, ApiError(404, message, code="unknown_url", headers=headers))
    return refused(request, ApiError(status, "the request cannot be answered", headers=headers))


async def _failed(request: Request, error: Exception) -> Response:
    return refused(request, api_error(error))
