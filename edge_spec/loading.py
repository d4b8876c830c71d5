"""From a name or a path to a model that writes text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_spec.controller.budget import Budget, budget_of, ledger_of
from edge_spec.controller.candidates import Configuration, note_of
from edge_spec.controller.degradation import Relief
from edge_spec.controller.open_models import OpenFamily
from edge_spec.controller.plan import STAGES, Plan, said_of
from edge_spec.controller.profiles import planned_profile
from edge_spec.controller.request import Request, StrPath, given_roles, request_of
from edge_spec.engines.llama.grammar import LlamaGrammar
from edge_spec.engines.llama.library import library
from edge_spec.engines.onnx.transcription.store import Transcriptions
from edge_spec.errors import BudgetExceeded, ModelFileError, OutOfMemory, SettingsError, VocabularyMismatch
from edge_spec.generation.session_cache import Shelf
from edge_spec.memory import parse_size, probe, usage
from edge_spec.memory.pressure import PressureWatch, system_watch
from edge_spec.model import TextModel
from edge_spec.models import resolve_family
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.modes import MODES, Mode
from edge_spec.speculation.policy import AdaptivePolicy, FixedPolicy, Policy

__all__ = ["load", "plan", "possible_modes"]

_ONE_OF_EACH_STAGE = ("ngram", "sequence", "hierarchy")
"""Modes whose needs stand for those of all that cost memory in the same way, see ``STAGES``."""


def load(
    model: StrPath = "demo",
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
    memory: str | int | None = None,
    cache_dir: Path | str | None = "default",
    on_wait: Callable[[str], None] = lambda sentence: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    watch: PressureWatch | None = None,
    verbose: bool = False,
    **llama: Any,
) -> TextModel:
    """Load a model and the smaller ones that speed it up.

    Args:
        model: path of a GGUF, of a published ONNX model or its folder, or the name of a family that comes with the
            package (``demo``).
        draft: path of the drafter's GGUF; a family brings its own.
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
        memory: what this process may hold, such as ``"2GiB"`` or a number of bytes: all memory of its own, and the
            mapped weights, which decoding touches for every token. By default what it holds and four fifths of what
            the device has available. What was not asked for by name gives way to fit it; ``notes`` tell.
        cache_dir: where transcribed models and what was found out about this device are kept; the user's cache
            directory by default, None for nowhere.
        on_wait: told, in a sentence, what takes long.
        on_progress: told bytes written and bytes to write while a model is transcribed; at its end they are equal.
        watch: tells when memory gets scarce while it runs; looks at this computer by default.
        verbose: let llama.cpp's log through to standard error.
        **llama: further fields of ``LlamaSettings``, such as ``n_threads``, ``kv_k`` and ``kv_v``.

    Raises:
        ModelFileError: a file cannot be used. VocabularyMismatch: a drafter speaks another vocabulary.
        BudgetExceeded: it does not fit the memory. DiskFull: a transcription does not fit the disk.
        SettingsError: a setting is out of range or contradicts another.
    """
    request = request_of(
        model,
        draft=draft,
        intermediate=intermediate,
        speculation=speculation,
        engine=engine,
        draft_engine=draft_engine,
        intermediate_engine=intermediate_engine,
        draft_limit=draft_limit,
        policy=policy,
        n_ctx=n_ctx,
        min_n_ctx=min_n_ctx,
        **llama,
    )
    library().verbose = verbose
    request.load_libraries()
    folder = _cache_dir(cache_dir)
    with _saying_what_would_do(request, folder):
        budget = budget_of(memory)
    transcriptions = Transcriptions(folder, on_wait=on_wait, on_progress=on_progress)
    request = request.settled(transcriptions, budget)
    planned = request.plan(budget)
    chosen = planned.chosen.configuration
    opened = OpenFamily(
        request.files,
        chosen.settings,
        engines=chosen.engines,
        ledger=ledger_of(planned),
        footprints=planned.chosen.parts,
        transcriptions=transcriptions,
        cache_dir=folder,
        on_wait=on_wait,
    )
    notes = [*request.notes, *budget.notes, *note_of(planned, request.files["target"], request.settings, request.modes)]
    template = request.files["target"].chat_template
    try:
        return _assemble(opened, chosen.mode, draft_limit, policy, template, notes, watch, request, folder)
    except BaseException:
        opened.close()
        raise


def plan(
    model: StrPath = "demo",
    *,
    memory: str | int | None = None,
    held_bytes: int | None = None,
    cache_dir: Path | str | None = "default",
    **arguments: Any,
) -> Plan:
    """What ``load`` would do with the same arguments; nothing is loaded.

    Args:
        memory: as for ``load``; a budget above what the device has is planned for as well.
        held_bytes: what the process holds; asked if None.
        **arguments: further ones of ``load``. Those that make no difference to memory are ignored.

    Raises:
        BudgetExceeded: nothing fits. ModelFileError, VocabularyMismatch, SettingsError: as ``load``.
    """
    requested = {name: value for name, value in arguments.items() if name not in _NOT_PLANNED}
    request = request_of(model, **requested)
    request.load_libraries()
    folder = _cache_dir(cache_dir)
    if memory is None:
        budget = budget_of(None)
    else:
        # Looked at as a load would, after what looking itself takes.
        probe()
        held = usage().resident_bytes if held_bytes is None else held_bytes
        with _saying_what_would_do(request, folder):
            budget = Budget(budget_bytes=parse_size(memory), held_bytes=held)
    request = request.settled(Transcriptions(folder, only_look=True), budget)
    found = request.plan(budget)
    least = dict(found.thresholds)
    for name in _ONE_OF_EACH_STAGE:
        # What other speculation would need is worth knowing as well, where the models for it are there.
        with suppress(SettingsError, ModelFileError, VocabularyMismatch):
            other = request_of(model, **{**requested, "speculation": name, "draft_limit": None})
            needs = other.settled(Transcriptions(folder, only_look=True), budget).thresholds(budget)
            least |= {stage: min(n_bytes, least.get(stage, n_bytes)) for stage, n_bytes in needs.items()}
    chosen: Configuration = found.chosen.configuration
    profile = planned_profile(
        request.files["target"], found.engine, chosen.settings, trees=chosen.mode.target_trees, cache_dir=folder
    )
    named = {"name": profile.name, **dict(profile.facts)} if profile is not None else None
    thresholds = {name: least[name] for name in ("fits", *STAGES[1:]) if name in least}
    return replace(found, thresholds=thresholds, profile=named)


@contextmanager
def _saying_what_would_do(request: Request, folder: Path | None) -> Iterator[None]:
    """A budget that is none, or none that this computer could give, is refused with those that would do."""
    try:
        yield
    except (SettingsError, OutOfMemory) as error:
        free = budget_of(None)
        try:
            found = request.settled(Transcriptions(folder, only_look=True), free).plan(free)
            advice = said_of(found.thresholds)
        except BudgetExceeded as too_little:
            advice = too_little.hint
        error.hint = f"{error.hint}; {advice}"
        raise


_NOT_PLANNED = ("on_wait", "on_progress", "watch", "verbose")


def possible_modes(
    model: StrPath = "demo", draft: StrPath | None = None, intermediate: StrPath | None = None
) -> list[str]:
    """Names of the modes for which these arguments of ``load`` bring the models; nothing is opened."""
    family = resolve_family(model)
    given = given_roles(draft or family.draft, intermediate or family.intermediate)
    return [name for name, mode in MODES.items() if given.issuperset(mode.needs)]


def _assemble(
    opened: OpenFamily,
    mode: Mode,
    limit: int | None,
    policy: Policy | None,
    template: str | None,
    notes: list[str],
    watch: PressureWatch | None,
    request: Request,
    folder: Path | None,
) -> TextModel:
    # Beside what is cached there is a disk; the system's own folder for temporary files may lie in memory.
    folder = folder if folder is not None and folder.is_dir() else None
    target, probed = opened.target(trees=mode.target_trees)
    if not target.capabilities.can_rollback and mode.name != "off":
        notes.append("speculation is off: this model's cache cannot be rolled back")
        mode = MODES["off"]
    elif mode.target_trees and not target.capabilities.takes_trees:
        notes.append(f"speculation {mode.name!r} is off: this model does not compute trees like sequences")
        mode = MODES["off"]
    elif target.capabilities.identity == "rounding" and mode.name != "off":
        notes.append("this model's rows round differently from width to width: drafts may change near ties")
    speculator = Speculator(target, opened.drafter(mode, target))
    tokenizer = opened.tokenizer()
    most = limit or mode.limit

    def new_policy() -> Policy:
        return AdaptivePolicy(most=most, seconds=probed.seconds) if mode.adapts else FixedPolicy(most)

    first = policy or (new_policy() if mode.adapts else None)
    shelf = Shelf(opened.ledger, folder=folder)
    return TextModel(
        speculator,
        # What an adaptive policy has learned about this device holds for the next reply as well.
        (lambda: first) if first else new_policy,
        tokenizer,
        mode=mode.name,
        lossless=mode.lossless,
        chat_template=template,
        notes=notes,
        grammars=lambda text: LlamaGrammar(opened.vocabulary(), text),
        ledger=opened.ledger,
        shelf=shelf,
        relief=Relief(
            speculator,
            opened,
            mode,
            shelf,
            watch or system_watch(),
            fixed=request.fixed,
            min_n_ctx=request.min_n_ctx,
            folder=folder,
        ),
        on_close=opened.close,
    )


def _cache_dir(cache_dir: Path | str | None) -> Path | None:
    if cache_dir == "default":
        from platformdirs import user_cache_path

        return user_cache_path("edge-spec")
    return Path(cache_dir) if cache_dir is not None else None
