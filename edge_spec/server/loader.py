"""Find, plan and open the models of a server inside one budget."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from edge_spec.controller.options import LoadOptions, StrPath
from edge_spec.engines.base import Engine
from edge_spec.engines.registry import AUTO, engines, why_none
from edge_spec.errors import BudgetExceeded, EdgeSpecError, ModelNotFound, Sentence
from edge_spec.library.stores import Found, all_models, match, name_of
from edge_spec.loading import PreparedModel, prepare, process_budget
from edge_spec.memory import Ledger, format_size
from edge_spec.memory.pressure import PressureReading, PressureWatch, system_watch
from edge_spec.model import TextModel
from edge_spec.models import ModelFile, inspect, resolve_family
from edge_spec.models.catalogue import family_names

__all__ = ["Loader", "Offer"]

_PACKAGE = "the package"
_REQUESTS_SHARE = 32
_LEAST_REQUESTS, _MOST_REQUESTS = 8 << 20, 128 << 20


@dataclass(frozen=True)
class Offer:
    """A model that can be asked for.

    Attributes:
        name: what it is called.
        model: what ``load`` takes for it.
    """

    name: str
    model: StrPath


class Loader:
    """Opens models inside one budget. Usable from any thread; its methods take a while.

    Each model is planned as if it were the only one, so that it has the same numerics profile whatever else is open.
    What is open together is counted in one ledger.

    Args:
        options: of ``load``, for each of the models.
        models: those that can be asked for, by name or path; all on this computer if empty.
        folder: the user's models.
        environment: variables, which say where programs keep their models.

    Attributes:
        ledger: of the whole budget.
        requests_bytes: what of it is kept for requests and answers.
        idle_bytes: returns what open models hold that nobody uses: these give way before others lose anything.

    Raises:
        SettingsError, OutOfMemory: see ``load``.
    """

    def __init__(
        self, options: Mapping[str, Any], models: Sequence[StrPath], *, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._asked = LoadOptions.of(None, options)
        self._models = [Found(name_of(each), Path(each), _PACKAGE) for each in models if isinstance(each, str)]
        self._given = {name_of(each): each for each in models}
        self._folder, self._environment = folder, environment
        budget = process_budget(self._asked.memory_bytes)
        self.notes = budget.notes
        self.requests_bytes = min(_MOST_REQUESTS, max(_LEAST_REQUESTS, budget.budget_bytes // _REQUESTS_SHARE))
        self.ledger = Ledger(budget.budget_bytes)
        self.ledger.claim("process", "interpreter and libraries", budget.held_bytes)
        # Libraries stay when a model is closed: a plan may not depend on which of them were loaded before it.
        libraries = [each for each in self._engines() if each.name not in budget.libraries]
        library_bytes = sum(each.library_bytes for each in libraries)
        process_bytes = sum(each.process_bytes for each in self._engines())
        self.ledger.claim("process", "libraries of engines", library_bytes + process_bytes)
        self._budget = replace(
            budget,
            budget_bytes=budget.budget_bytes - self.requests_bytes - process_bytes,
            held_bytes=budget.held_bytes + library_bytes,
            libraries=budget.libraries | {each.name for each in libraries},
            notes=(),
        )
        self._system = system_watch(budget.limit_bytes)
        self._prepared = dict[str, PreparedModel]()
        self._files = dict[tuple[Path, int, int], ModelFile]()
        self._lock, self._preparing = threading.Lock(), threading.Lock()
        self.idle_bytes: Callable[[], int] = lambda: 0

    # --- names

    def offers(self) -> Iterator[Offer]:
        """Yield all models that can be asked for, the default one first; those that cannot be opened are left out."""
        seen = set[str]()
        for offer in self._all():
            if offer.name not in seen and self.file(offer) is not None:
                seen.add(offer.name)
                yield offer

    def find(self, name: str | None) -> Offer:
        """Return the model that a name means; the first one if None.

        Raises:
            ModelNotFound: there is none, or several.
        """
        if name is None:
            for offer in self.offers():
                return offer
            raise ModelNotFound("there is no model on this computer", hint="fetch one: edge-spec pull")
        every = list(self._all())
        plain = name.removesuffix(":latest")
        for wanted in (name, plain, plain.casefold()):
            for offer in every:
                if offer.name == wanted:
                    return offer
        found = [Found(each.name, Path(each.model), _store(each.model)) for each in every]
        meant = match(name, found) or match(plain, found)
        if meant is None:
            near = get_close_matches(plain, [each.name for each in every], 3)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise ModelNotFound(f"there is no model {name!r}", hint=f"{hint}/v1/models lists those that are here")
        return next(each for each in every if each.name == meant.name)

    def file(self, offer: Offer) -> ModelFile | None:
        """Return what the file of a model says; None if it cannot be used."""
        with suppress(EdgeSpecError, OSError):
            path = resolve_family(offer.model).target
            stat = path.stat()
            key = path, stat.st_size, stat.st_mtime_ns
            with self._lock:
                found = self._files.get(key)
            if found is None:
                found = inspect(path)
                with self._lock:
                    self._files[key] = found
            return found if why_none(found) is None and found.trimmed is None else None
        return None

    def _all(self) -> Iterator[Offer]:
        if self._given:
            yield from (Offer(name, model) for name, model in self._given.items())
            return
        first = resolve_family().name
        yield from (Offer(name, name) for name in sorted(family_names(), key=lambda name: name != first))
        yield from (Offer(found.name, found) for found in all_models(self._folder, self._environment))

    # --- memory

    def prepare(self, offer: Offer, on_progress: Callable[[str], None]) -> PreparedModel:
        """Return a model that is planned.

        Raises:
            What ``load`` raises.
        """
        with self._preparing:
            known = self._prepared.get(offer.name)
            if known is None or not known.is_current:
                asked = self._telling(replace(self._asked, model=offer.model), on_progress)
                known, openers = prepare(asked, self._budget)
                for each in openers.values():
                    each.close()
                self._prepared[offer.name] = known
            return known

    def lacking_bytes(self, prepared: PreparedModel) -> int:
        """Return by how much what is left is too little for a model; 0 for any that is planned if nothing is open."""
        left = self.ledger.left_bytes
        assert left is not None
        return max(0, prepared.plan.share_bytes - left)

    def refusal(self, prepared: PreparedModel) -> BudgetExceeded:
        """Return the error for a model for which too little is left."""
        hint = Sentence("raise {memory}, or ask for a smaller model")
        needed, left = prepared.plan.share_bytes, self.ledger.left_bytes or 0
        return BudgetExceeded(f"the model {prepared.name}", needed_bytes=needed, allowed_bytes=left, hint=hint)

    def open(self, prepared: PreparedModel, on_progress: Callable[[str], None]) -> TextModel:
        """Open a model for which there is room.

        Raises:
            What ``load`` raises.
        """
        watch = PressureWatch(self._look, low_bytes=self._system.low_bytes)
        openers = prepared.openers(self._telling(prepared.asked, on_progress))
        return prepared.open(openers, within=self.ledger, watch=watch)

    @property
    def is_scarce(self) -> bool:
        """Whether this process holds more than its budget, or the computer has too little left."""
        return self._system.is_scarce(self._system.look())

    def _look(self) -> PressureReading:
        """Return a reading for one of the models: memory is scarce for it only when nothing is idle any more."""
        seen, idle, left = self._system.look(), self.idle_bytes(), self.ledger.left_bytes
        if idle and self._system.is_scarce(seen):
            return replace(seen, available_bytes=max(seen.available_bytes, self._system.low_bytes), left_bytes=0)
        lefts = [each for each in (seen.left_bytes, left) if each is not None]
        return replace(seen, left_bytes=min(lefts, default=None))

    def _engines(self) -> list[Engine]:
        """Return the engines that may run a model."""
        asked = {self._asked.engine, self._asked.draft_engine, self._asked.intermediate_engine}
        return [each for each in engines() if AUTO in asked or each.name in asked if not each.why_not_installed()]

    def _telling(self, asked: LoadOptions, on_progress: Callable[[str], None]) -> LoadOptions:
        def told(stage: str, done: int, total: int) -> None:
            on_progress(f"{stage} {done * 100 // max(1, total)} %")

        return replace(asked, on_progress=told, on_wait=on_progress)

    def described(self) -> str:
        """What of the budget is held, for people."""
        return f"{format_size(self.ledger.held_bytes)} of {format_size(self.ledger.budget_bytes or 0)}"


def _store(model: StrPath) -> str:
    return model.store if isinstance(model, Found) else _PACKAGE
