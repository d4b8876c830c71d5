"""The models of a server: one is lent to each request, opened when it is asked for, and closed to make room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from edge_spec.errors import BudgetExceeded, EdgeSpecError, ModelNotFound
from edge_spec.generation.reader import in_a_thread
from edge_spec.loading import PreparedModel
from edge_spec.memory import Ledger, format_size
from edge_spec.model import TextModel
from edge_spec.models import ModelFile
from edge_spec.server.errors import ApiError, api_error, in_fields
from edge_spec.server.jobs import JobMaker
from edge_spec.server.loader import Loader, Offer
from edge_spec.server.settings import ServerSettings

__all__ = ["Lease", "Models", "ServedModel"]

T = TypeVar("T")

_LOOK_S = 0.5
"""So often is looked whether models have been idle for long, and whether memory is scarce."""

_FOREVER = float("inf")


@dataclass(eq=False)
class ServedModel:
    """A model that clients can ask for.

    Attributes:
        name: what they call it.
        offer: where it comes from; None if it is always open.
        jobs: makes jobs of requests for it; None while it is closed.
        idle_s: seconds for which it stays open after it was used last.
        n_users: requests that hold it.
        n_loads: how often it was opened.
        used_s: when it was used last, by the clock of the event loop.
        progress: what is done to open it; empty while nothing is.
        profile: the name of its numerics profile, once it has been open.
    """

    name: str
    offer: Offer | None = None
    jobs: JobMaker | None = None
    places: asyncio.Semaphore | None = None
    idle_s: float = _FOREVER
    n_users: int = 0
    n_loads: int = 0
    used_s: float = 0.0
    progress: str = ""
    profile: str = ""
    has_to_go: bool = False
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    opening: asyncio.Task[None] | None = None
    closing: asyncio.Task[None] | None = None
    is_loading: bool = False

    @property
    def model(self) -> TextModel | None:
        """The model while it is open."""
        return self.jobs.model if self.jobs is not None else None

    @property
    def expires_s(self) -> float:
        """When it is closed if nobody uses it, by the clock of the event loop; infinite for never."""
        return self.used_s + self.idle_s


class Lease:
    """A model that a request holds, until ``end``. It stays open meanwhile.

    Attributes:
        jobs: makes the job of the request.
        places: limits how many requests write at a time; None for the queue's own limit.
    """

    def __init__(self, models: Models, served: ServedModel) -> None:
        assert served.jobs is not None
        self.jobs = served.jobs
        self.places = served.places
        self.served = served
        self._models = models
        self._is_over = False

    def held(self) -> Callable[[], object]:
        """Let something else hold the model, too; return what ends that, once, in any thread."""
        loop, served, models = asyncio.get_running_loop(), self.served, self._models
        served.n_users += 1

        def end() -> None:
            # A loop that is closed has closed its models.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(models.give_back, served, served.idle_s)

        return end

    def end(self, idle_s: float | None = None) -> None:
        """Give the model back. Safe to call twice.

        Args:
            idle_s: how long it stays open from now on; the server's default if None.
        """
        if not self._is_over:
            self._is_over = True
            self._models.give_back(self.served, idle_s)


class Models:
    """Models by name. Belongs to one event loop, except for ``listed`` and ``described``.

    Those that are open share one budget. What is asked for and does not fit is waited for in the order of arrival: of
    idle models the caches of texts give way, then drafters, and then those that were used least recently are closed.
    A model that is used is never closed: if it has to give way, further requests for it wait behind the one that
    needs its memory. A request holds one model, so that no two wait for each other.

    Args:
        source: the only model, which is open and stays so, or what opens models.
        settings: how the server behaves.
        ledger: of the memory for answers.
    """

    def __init__(self, source: TextModel | Loader, settings: ServerSettings, ledger: Ledger) -> None:
        self.settings = settings
        self.started = int(time.time())
        self.n_closed = dict.fromkeys(("idle", "memory"), 0)
        self._ledger = ledger
        self._loader = source if isinstance(source, Loader) else None
        self._served = dict[str, ServedModel]()
        # What is meant where a request names no model.
        self._first = ""
        self._turn = asyncio.Lock()
        self._given_back = asyncio.Event()
        self._tasks = set[asyncio.Task[Any]]()
        if isinstance(source, TextModel):
            served = ServedModel(settings.name)
            served.jobs = JobMaker(source, settings, ledger)
            served.profile = source.profile.name
            self._served[settings.name] = served
        else:
            source.idle_bytes = self._idle_bytes
            self._looking = asyncio.ensure_future(self._look())

    # --- for requests

    @property
    def are_several(self) -> bool:
        """Whether models are opened and closed here."""
        return self._loader is not None

    @property
    def all(self) -> list[ServedModel]:
        """Those that have been asked for."""
        return list(self._served.values())

    @property
    def open(self) -> list[ServedModel]:
        """Those that are open now."""
        return [each for each in self.all if each.jobs is not None]

    async def find(self, name: str | None) -> ServedModel:
        """Return the model that a request names; it need not be open.

        Raises:
            ApiError: 404, with the nearest names.
        """
        loader = self._loader
        if loader is None:
            (only,) = self._served.values()
            if name is not None and name.removesuffix(":latest").casefold() != only.name.casefold():
                raise _unknown(f"The model {name!r} does not exist; this server has {only.name!r}")
            return only
        known = self._served.get(self._first if name is None else name)
        if known is not None and known.jobs is not None:
            return known
        try:
            offer = await in_a_thread(lambda: loader.find(name))
        except ModelNotFound as error:
            raise _unknown(in_fields(error)) from None
        served = self._served.setdefault(offer.name, ServedModel(offer.name, idle_s=self.settings.idle_s))
        served.offer = offer
        if name is None:
            self._first = offer.name
        return served

    async def lease(self, served: ServedModel, deadline: float) -> Lease:
        """Lend a model to a request as soon as it is open and, if others need its memory, these had their turn.

        Args:
            deadline: by the clock of the event loop.

        Raises:
            ApiError: 404 if its file is gone, 504 if it takes too long. EdgeSpecError: it cannot be opened, such as
                ``BudgetExceeded``, with both numbers.
        """
        if served.jobs is None or served.has_to_go:
            await self._granted(served, deadline)
        else:
            served.n_users += 1
        served.used_s = _now()
        return Lease(self, served)

    async def _granted(self, served: ServedModel, deadline: float) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        served.waiting.append(granted)
        if served.opening is None or served.opening.done():
            served.opening = self._task(self._open(served))
        try:
            async with asyncio.timeout_at(deadline):
                await granted
        except (TimeoutError, asyncio.CancelledError) as error:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.give_back(served, served.idle_s)
            self._leave(served, granted)
            if isinstance(error, TimeoutError):
                raise _too_late(served) from None
            raise

    def _leave(self, served: ServedModel, granted: asyncio.Future[None]) -> None:
        """Stop waiting; what nobody waits for is not opened, unless it is being loaded already."""
        if granted in served.waiting:
            served.waiting.remove(granted)
        if not served.waiting and not served.is_loading and served.opening is not None:
            served.opening.cancel()
            served.opening = None

    def give_back(self, served: ServedModel, idle_s: float | None) -> None:
        """End the use of a model by a request; see ``Lease.end``."""
        served.n_users -= 1
        served.used_s = _now()
        if self._loader is not None:
            served.idle_s = self.settings.idle_s if idle_s is None else idle_s
            if served.idle_s <= 0 and not served.n_users:
                self._close(served, "idle")
        self._given_back.set()

    def unload(self, served: ServedModel) -> None:
        """Close a model as soon as nobody uses it."""
        served.idle_s = 0.0
        if self._loader is not None and served.jobs is not None and not served.n_users:
            self._close(served, "idle")

    # --- opening and closing

    async def _open(self, served: ServedModel) -> None:
        """Open a model and lend it to those who wait, in the order of arrival."""
        try:
            async with self._turn:
                # One that had to go may not have gone: who needed its memory has it, or has left.
                if served.jobs is None:
                    await self._make(served)
                served.opening = None
                self._grant(served)
        except Exception as error:
            served.opening = None
            waiting, served.waiting = served.waiting, []
            for each in waiting:
                if not each.done():
                    each.set_exception(_refusal(error))
                    # Who has left meanwhile does not look at it.
                    each.exception()
        finally:
            served.progress, served.is_loading = "", False

    def _grant(self, served: ServedModel) -> None:
        waiting, served.waiting = served.waiting, []
        for each in waiting:
            if not each.done():
                served.n_users += 1
                each.set_result(None)

    async def _make(self, served: ServedModel) -> None:
        loader = self._loader
        assert loader is not None and served.offer is not None
        offer, began = served.offer, _now()

        def on_progress(stage: str) -> None:
            served.progress = stage

        on_progress("planning")
        if served.closing is not None:
            await asyncio.wait([served.closing])
        prepared = await in_a_thread(lambda: loader.prepare(offer, on_progress))
        while True:
            await self._make_room(served, prepared)
            served.is_loading = True
            on_progress("loading")
            try:
                model = await in_a_thread(lambda: loader.open(prepared, on_progress))
                break
            except BudgetExceeded:
                served.is_loading = False
                # An open model may have taken more cells meanwhile.
                if not loader.lacking_bytes(prepared):
                    raise
        settings = replace(self.settings, name=served.name)
        served.jobs = JobMaker(model, settings, self._ledger)
        served.places = asyncio.Semaphore(self.settings.at_once or model.most_texts)
        served.profile, served.idle_s, served.used_s = model.profile.name, self.settings.idle_s, _now()
        served.n_loads += 1
        self.settings.log(
            f"opened {served.name} ({format_size(model.ledger.share_bytes)}) in {_now() - began:.1f} s; "
            f"{loader.described()} are held"
        )

    async def _make_room(self, served: ServedModel, prepared: PreparedModel) -> None:
        """Free what a model lacks; wait for models that are used if it is not enough to close idle ones."""
        loader = self._loader
        assert loader is not None
        try:
            while lacking := loader.lacking_bytes(prepared):
                closing = [each.closing for each in self._served.values() if each.closing is not None]
                if closing:
                    await asyncio.wait(closing)
                elif not await self._give_way(lacking, f"for {served.name}"):
                    if not (used := self._by_use(self.open)):
                        raise loader.refusal(prepared)
                    self._send_away(used, lacking)
                    served.progress = (
                        f"waiting for memory: {format_size(lacking)} more than is left beside "
                        f"{', '.join(each.name for each in used)}"
                    )
                    self._given_back.clear()
                    await self._given_back.wait()
        finally:
            for each in self.open:
                each.has_to_go = False

    def _send_away(self, used: Iterable[ServedModel], lacking: int) -> None:
        """Let no further request use those models whose memory is needed, the least recently used ones first."""
        for each in used:
            if lacking > 0:
                each.has_to_go = True
                assert each.model is not None
                lacking -= each.model.ledger.share_bytes

    async def _give_way(self, lacking: int, why: str) -> bool:
        """Free some memory of idle models; return whether there was any."""
        idle = self._by_use(each for each in self.open if not each.n_users)
        models = [model for each in idle if (model := each.model) is not None]
        if sum(model.spare_bytes for model in models) >= lacking:
            for model in models:
                if model.spare_bytes and await in_a_thread(model.give_way):
                    return True
        # Those that were idle may be used again by now.
        idle = [each for each in idle if not each.n_users and each.jobs is not None]
        if idle:
            await asyncio.wait([self._close(idle[0], "memory", why)])
        return bool(idle)

    def _close(self, served: ServedModel, reason: str, why: str = "") -> asyncio.Task[None]:
        """Close a model that nobody uses."""
        model = served.model
        assert model is not None and not served.n_users
        served.jobs = served.places = None
        served.has_to_go = False
        self.n_closed[reason] += 1
        held = format_size(model.ledger.share_bytes)

        async def close() -> None:
            await in_a_thread(model.close)
            served.closing = None
            self.settings.log(f"closed {served.name} ({held}) {why or 'after it was idle'}")
            self._given_back.set()

        served.closing = self._task(close())
        return served.closing

    async def _look(self) -> None:
        """Close what has been idle for long, and give memory back where it is scarce."""
        loader = self._loader
        assert loader is not None
        while True:
            await asyncio.sleep(_LOOK_S)
            for each in self.open:
                if not each.n_users and _now() >= each.expires_s:
                    self._close(each, "idle")
            if self._idle_bytes() and not self._turn.locked() and await in_a_thread(lambda: loader.is_scarce):
                async with self._turn:
                    await self._give_way(1, "since memory is scarce")

    def _by_use(self, served: Iterable[ServedModel]) -> list[ServedModel]:
        return sorted(served, key=lambda each: each.used_s)

    def _idle_bytes(self) -> int:
        idle = [model for each in self.open if not each.n_users and (model := each.model) is not None]
        return sum(model.ledger.share_bytes for model in idle)

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def stop(self) -> None:
        """Refuse requests that wait for a model."""
        for served in self.all:
            waiting, served.waiting = served.waiting, []
            for each in waiting:
                if not each.done():
                    each.set_exception(ApiError(503, "the server is stopping; ask again later", code="stopping"))
                    each.exception()

    async def close(self) -> None:
        """Close the models that were opened here, when what is being loaded is there."""
        if self._loader is None:
            return
        self._looking.cancel()
        for each in self._served.values():
            if each.opening is not None and not each.is_loading:
                each.opening.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for each in self.open:
            each.n_users = 0
            await self._close(each, "idle", "with the server")

    # --- for lists, from any thread

    def listed(self) -> Iterator[tuple[ServedModel, ModelFile | None]]:
        """Yield all models that can be asked for, with what their files say."""
        if self._loader is None:
            for each in self._served.values():
                yield each, self.file(each)
        else:
            for offer in self._loader.offers():
                served = self._served.get(offer.name) or ServedModel(offer.name, offer=offer)
                yield served, self._loader.file(offer)

    def file(self, served: ServedModel) -> ModelFile | None:
        """Return what the file of a model says; None if it has none."""
        jobs = served.jobs
        if jobs is not None:
            return jobs.model.file
        return self._loader.file(served.offer) if self._loader is not None and served.offer is not None else None


def _unknown(message: str) -> ApiError:
    return ApiError(404, message, code="model_not_found", param="model")


def _refusal(error: Exception) -> Exception:
    """Return the error for those who wait for a model that cannot be opened."""
    match error:
        case ModelNotFound():
            return _unknown(in_fields(error))
        case BudgetExceeded():
            # Not a status at which clients ask again by themselves.
            return ApiError(400, in_fields(error), code="model_too_large", param="model")
        case EdgeSpecError():
            return api_error(error)
        case _:
            return error


def _too_late(served: ServedModel) -> ApiError:
    doing = f" ({served.progress})" if served.progress else ""
    message = f"the model {served.name} was not open in time{doing}; ask again later, or raise --timeout or --memory"
    return ApiError(504, message, code="timeout")


def _now() -> float:
    return asyncio.get_running_loop().time()
