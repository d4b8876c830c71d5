"""From a name or a path to a model that writes text."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from edge_spec.arguments import require_path
from edge_spec.controller.candidates import Candidate, Estimates, frugal, stage_of
from edge_spec.controller.degradation import Degradation
from edge_spec.controller.drafter_choice import ReadFile, own_drafter, own_intermediate
from edge_spec.controller.measurements import Measurements
from edge_spec.controller.open_models import OpenModels
from edge_spec.controller.plan import Plan, PlanReport, make_plan, report
from edge_spec.controller.request import LoadArguments, Request, StrPath, given_roles, request_of
from edge_spec.engines.base import Engine, Opener, Progress
from edge_spec.engines.registry import AUTO
from edge_spec.engines.tokenizers import BudgetedGrammars
from edge_spec.errors import ModelFileError, SettingsError, VocabularyMismatch
from edge_spec.generation.reader import in_a_thread
from edge_spec.library.stores import locate, name_of
from edge_spec.memory import probe, usage
from edge_spec.memory.budget import Budget, budget_of, parse_memory
from edge_spec.memory.pressure import PressureWatch, system_watch
from edge_spec.model import TextModel
from edge_spec.models import inspect, resolve, resolve_family
from edge_spec.speculation.modes import MODES, Mode
from edge_spec.speculation.policy import Policy

__all__ = ["AwaitedModel", "aload", "load", "plan", "possible_modes"]


def load(
    model: StrPath | None = None,
    *,
    draft: StrPath | None = None,
    intermediate: StrPath | None = None,
    speculation: str | Mode = "auto",
    engine: str = "auto",
    draft_engine: str | None = None,
    intermediate_engine: str | None = None,
    draft_limit: int | None = None,
    policy: Policy | None = None,
    n_ctx: int | None = None,
    min_n_ctx: int | None = None,
    texts: int = 1,
    memory: str | int | None = None,
    cache_dir: Path | str | None = "default",
    on_wait: Callable[[str], None] = lambda sentence: None,
    on_progress: Progress = lambda stage, done, total: None,
    watch: PressureWatch | None = None,
    verbose: bool = False,
    **settings: Any,
) -> TextModel:
    """Load a model and the smaller ones that speed it up.

    Args:
        model: path of a GGUF, of a published ONNX model or its folder, or a name: ``demo`` for the family that comes
            with the package, ``smollm2`` for SmolLM2-135M-Instruct (extra ``smollm2``), or any that
            ``edge-spec list`` shows. If None, ``smollm2`` where it is installed, else ``demo``.
        draft: path of the drafter's GGUF; by default the one that ``edge-spec drafter make`` has made for this model
            on this computer, or else the family's own.
        intermediate: path of the intermediate model's GGUF; a family brings its own.
        speculation: ``auto``, ``off``, ``sequence``, ``tree``, ``hierarchy``, ``ngram``, or a ``Mode``.
        engine: what runs the models: ``llama`` (llama.cpp), ``onnx`` (ONNX Runtime, on weights transcribed once),
            or ``auto``: ONNX Runtime where edge-spec's kernels are there and know the model, else llama.cpp, and
            ``notes`` of what is returned say why.
        draft_engine, intermediate_engine: the same for the smaller models; the target's engine by default.
        draft_limit: tokens drafted per round; the mode's own default if None.
        policy: chooses the limit of each round instead.
        n_ctx: the most tokens of prompt and reply; if None what the model was trained for, up to 4,096, or less where
            that does not fit the memory.
        min_n_ctx: instead of ``n_ctx``: at least so many, and more, up to what the model was trained for, where the
            memory has room. How many is part of the numerics profile.
        texts: keep room in the memory for the caches of so many texts of ``n_ctx`` tokens at once, see
            ``TextModel.generate_many``. Without it they are as many at a time as what is left has room for.
        memory: what this process may hold, such as ``"2GiB"`` or a number of bytes: all memory of its own, and the
            mapped weights, which decoding touches for every token. What was not asked for by name gives way to fit it;
            ``notes`` tell. By default what it holds and four fifths of what the device has available; this decides
            what is loaded and does not limit what the program allocates afterwards.
        cache_dir: where transcribed models and what was found out about this device are kept; the user's cache
            directory by default, None for nowhere.
        on_wait: called with a sentence that says what takes long.
        on_progress: called with a stage, bytes done and bytes in all; at its end they are equal. The stages of a file
            are ``transcribing``, where it has to be transcribed first, and ``loading``.
        watch: tells when memory gets scarce while it runs; looks at this computer by default.
        verbose: let llama.cpp's log through to standard error.
        **settings: fields of ``ModelSettings``, and of single engines, such as ``n_threads``, ``kv_k`` or ``repack``.

    Raises:
        ModelFileError: a file cannot be used. VocabularyMismatch: a drafter speaks another vocabulary.
        BudgetExceeded: it does not fit the memory. DiskFull: a transcription does not fit the disk.
        SettingsError: a setting is out of range or contradicts another.
    """
    folder, model = _cache_dir(cache_dir), _located(model)
    request = request_of(
        LoadArguments(
            model=model,
            draft=_located(draft),
            intermediate=_located(intermediate),
            speculation=speculation,
            engine=engine,
            draft_engine=draft_engine,
            intermediate_engine=intermediate_engine,
            draft_limit=draft_limit,
            policy=policy,
            n_ctx=n_ctx,
            min_n_ctx=min_n_ctx,
            texts=texts,
            cache_dir=folder,
            settings=settings,
        ),
        cache(inspect),
    )
    request.load_libraries(verbose=verbose)
    budget = budget_of(memory)
    openers = {
        each: each.opener(cache_dir=folder, on_wait=on_wait, on_progress=on_progress) for each in request.in_question
    }
    planned = make_plan(request, budget, openers)
    watch = watch or system_watch(budget.limit_bytes)
    return _opened(request, planned, openers, folder, watch, name=name_of(model))


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
            # A library that loads does not stop; what it has loaded must not stay.
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


def aload(model: StrPath | None = None, **arguments: Any) -> AwaitedModel:
    """``load`` for event loops: other tasks continue while a thread loads the model.

        async with edge_spec.aload("smollm2") as model:
            print(await model.generate("Tell me a story.", seed=7))

    or ``model = await edge_spec.aload()``, and later ``await model.aclose()``. If the task is cancelled, what is
    being loaded is closed as soon as it is there.

    Args:
        model, **arguments: as for ``load``; ``on_wait`` and ``on_progress`` are called in the thread that loads.

    Raises:
        What ``load`` raises, when it is awaited.
    """
    return AwaitedModel({"model": model, **arguments})


def plan(
    model: StrPath | None = None,
    *,
    memory: str | int | None = None,
    held_bytes: int | None = None,
    cache_dir: Path | str | None = "default",
    **arguments: Any,
) -> PlanReport:
    """What ``load`` would do with the same arguments; nothing is loaded.

    Args:
        memory: as for ``load``; a budget above what the device has is planned for as well.
        held_bytes: what the process holds; asked if None.
        **arguments: further ones of ``load``. Those that make no difference to memory are ignored.

    Raises:
        BudgetExceeded: nothing fits. ModelFileError, VocabularyMismatch, SettingsError: as ``load``.
    """
    folder = _cache_dir(cache_dir)
    asked = {name: value for name, value in arguments.items() if name not in _NOT_PLANNED}
    asked |= {role: _located(asked[role]) for role in ("draft", "intermediate") if role in asked}
    wanted = LoadArguments.of(model=_located(model), cache_dir=folder, **asked)
    # Each kind of speculation asks for the same files.
    read_file = cache(inspect)
    request = request_of(wanted, read_file)
    request.load_libraries()
    if memory is None:
        budget = budget_of(None)
    else:
        # Measured as a load would, after what measuring itself takes.
        probe()
        held = usage().resident_bytes if held_bytes is None else held_bytes
        budget = Budget(budget_bytes=parse_memory(memory), held_bytes=held)
    openers = {each: each.opener(cache_dir=folder, only_look=True) for each in request.in_question}
    found = make_plan(request, budget, openers)
    requests = (request, *_other_requests(wanted, read_file))
    engine, own = found.chosen.engines["target"], found.chosen.models["target"]
    profile = engine.profile(request.target, own, cache_dir=folder)
    named = {"name": profile.name, **dict(profile.facts)} if profile is not None else None
    files = {role: file for each in reversed(requests) for role, file in each.files.items()}
    return report(found, _frugal(requests, budget), named, Measurements(folder, files))


def _frugal(requests: Iterable[Request], budget: Budget) -> list[Candidate]:
    """Ways to run some requests that need little memory."""
    found: list[Candidate] = []
    for request in requests:
        with Estimates(request.files, budget=budget, n_texts=request.n_texts) as estimates:
            found += frugal(request, estimates)
    return found


_NOT_PLANNED = ("on_wait", "on_progress", "watch", "verbose")


def _other_requests(arguments: LoadArguments, read_file: ReadFile) -> Iterator[Request]:
    """The same with each other kind of speculation, as far as the models for it are there."""
    for mode in {stage_of(mode): mode for mode in reversed(MODES.values())}.values():
        with suppress(SettingsError, ModelFileError, VocabularyMismatch):
            yield request_of(replace(arguments, speculation=mode.name, draft_limit=None), read_file)


def possible_modes(
    model: StrPath | None = None,
    *,
    draft: StrPath | None = None,
    intermediate: StrPath | None = None,
    engine: str = AUTO,
    **_: Any,
) -> list[str]:
    """Return the names of the modes for which these arguments of ``load`` bring the models; nothing is opened.

    Args:
        **_: further arguments of ``load``, which make no difference.
    """
    family, draft, intermediate = resolve_family(_located(model)), _located(draft), _located(intermediate)
    read_file = cache(inspect)
    found = draft or own_drafter(family, read_file(family.target), engine, read_file)[0]
    between = family.intermediate if intermediate is None else resolve(intermediate)
    family = replace(family, intermediate=between)
    given = given_roles(found, own_intermediate(family, None if found is None else resolve(found), read_file))
    return [name for name, mode in MODES.items() if given.issuperset(mode.needs)]


def _opened(
    request: Request,
    planned: Plan,
    openers: Mapping[Engine, Opener],
    folder: Path | None,
    watch: PressureWatch,
    *,
    name: str,
) -> TextModel:
    """Open what was planned, or nothing.

    Args:
        openers: open the models, by engine.
        folder: for what is kept between runs; None for nowhere.
        watch: tells when memory gets scarce.
        name: what the model is called.
    """
    measurements = Measurements(folder, request.files)
    models = OpenModels(
        request.files, planned.chosen, openers, planned.ledger(), folder=_on_disk(folder), measurements=measurements
    )
    try:
        return _text_model(models, request, planned.notes, watch, name)
    except BaseException:
        models.close()
        raise


def _text_model(
    models: OpenModels, request: Request, notes: Iterable[str], watch: PressureWatch, name: str
) -> TextModel:
    """The model that writes text, around what is open."""
    mode, tokenizer, ledger = models.candidate.mode, models.tokenizer(), models.ledger
    grammars = BudgetedGrammars(tokenizer, ledger)

    def close() -> None:
        grammars.close()
        models.close()

    return TextModel(
        models.speculator,
        lambda: request.policy_of(mode),
        tokenizer,
        mode=mode.name,
        lossless=mode.lossless,
        chat_template=request.target.chat_template,
        files=request.files,
        name=name,
        notes=[*notes, *models.notes],
        grammars=grammars.new,
        session_cache=models.session_cache,
        guard=Degradation(models, request, watch),
        keep_costs=models.keep_costs,
        keep_gain=models.keep_gain,
        on_close=close,
    )


def _located(model: StrPath | None) -> StrPath | None:
    """The path of a model by any name that ``edge-spec list`` shows; anything else as it is.

    Programs look for models where the command would: this is the one place besides it that reads the environment.
    """
    return locate(model, None, os.environ) or model if isinstance(model, str) else model


def _cache_dir(cache_dir: Path | str | None) -> Path | None:
    if cache_dir is not None:
        require_path("cache_dir", cache_dir)
    if cache_dir == "default":
        from platformdirs import user_cache_path

        return user_cache_path("edge-spec")
    return Path(cache_dir) if cache_dir is not None else None


def _on_disk(folder: Path | None) -> Path | None:
    """A folder that lies on a disk; the system's own for temporary files may lie in memory."""
    return folder if folder is not None and folder.is_dir() else None
