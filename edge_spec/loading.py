"""From a name or a path to a model that writes text."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_spec.backends.llama import LlamaSettings
from edge_spec.backends.llama.library import library
from edge_spec.backends.onnx.session import runtime_version
from edge_spec.budget import Budget, budget_of, ledger_of
from edge_spec.drafters.plain import NoDrafter
from edge_spec.engines import engines_of, refuse_idle_settings
from edge_spec.errors import SettingsError
from edge_spec.family import OpenFamily
from edge_spec.memory import Plan, parse_size, usage
from edge_spec.models import ModelFile, check_pair, inspect, resolve, resolve_family
from edge_spec.planning import Planner, note_of
from edge_spec.policy import AdaptivePolicy, FixedPolicy, Policy
from edge_spec.requirements import require_path, require_whole
from edge_spec.speculation import MODES, Mode, mode_of, require_models
from edge_spec.speculator import Speculator
from edge_spec.text_model import TextModel

__all__ = ["load", "plan", "possible_modes"]

_DEFAULT_N_CTX = 4096

StrPath = str | os.PathLike[str]


def load(
    model: StrPath = "demo",
    *,
    draft: StrPath | None = None,
    middle: StrPath | None = None,
    speculation: str | Mode = "auto",
    engine: str = "auto",
    draft_engine: str | None = None,
    middle_engine: str | None = None,
    draft_limit: int | None = None,
    policy: Policy | None = None,
    n_ctx: int | None = None,
    memory: str | int | None = None,
    cache_dir: Path | str | None = "default",
    on_wait: Callable[[str], None] = lambda sentence: None,
    verbose: bool = False,
    **llama: Any,
) -> TextModel:
    """Load a model and the smaller ones that speed it up.

    Args:
        model: path of a GGUF, or the name of a family that comes with the package (``demo``).
        draft: path of the drafter's GGUF; a family brings its own.
        middle: path of the intermediate model's GGUF; a family brings its own.
        speculation: ``auto``, ``off``, ``sequence``, ``tree``, ``hierarchy``, ``ngram``, or a ``Mode``.
        engine: what runs the models: ``llama`` (llama.cpp), ``onnx`` (ONNX Runtime, on weights transcribed once),
            or ``auto``, which is llama.cpp.
        draft_engine, middle_engine: the same for the smaller models; the target's engine by default.
        draft_limit: tokens drafted per round; the mode's own default if None.
        policy: chooses the limit of each round instead.
        n_ctx: the most tokens of prompt and reply; if None what the model was trained for, up to 4,096, or less where
            that does not fit the memory.
        memory: what this process may hold, such as ``"2GiB"`` or a number of bytes: all memory of its own, and the
            mapped weights, which decoding touches for every token. By default what it holds and four fifths of what
            the device has available. What was not asked for by name gives way to fit it; ``notes`` tell.
        cache_dir: where transcribed models and what was found out about this device are kept; the user's cache
            directory by default, None for nowhere.
        on_wait: told, in a sentence, what takes long.
        verbose: let llama.cpp's log through to standard error.
        **llama: further fields of ``LlamaSettings``, such as ``n_threads``, ``kv_k`` and ``kv_v``.

    Raises:
        ModelFileError: a file cannot be used. VocabularyMismatch: a drafter speaks another vocabulary.
        BudgetExceeded: it does not fit the memory. DiskFull: a transcription does not fit the disk.
        SettingsError: a setting is out of range or contradicts another.
    """
    request = _request(
        model, draft=draft, middle=middle, speculation=speculation, engine=engine, draft_engine=draft_engine,
        middle_engine=middle_engine, draft_limit=draft_limit, policy=policy, n_ctx=n_ctx, llama=llama,
    )  # fmt: skip
    library().verbose = verbose
    request.load_libraries()
    budget = budget_of(memory)
    planned = request.plan(budget)
    notes = [*request.notes, *budget.notes, *note_of(planned, request.settings, request.modes)]
    chosen = planned.chosen.configuration
    target = request.files["target"]
    assert target is not None
    opened = OpenFamily(
        target, request.files["draft"], request.files["middle"], chosen.settings, engines=request.engines,
        ledger=ledger_of(planned), footprints=planned.chosen.parts, cache_dir=_cache_dir(cache_dir), on_wait=on_wait,
    )  # fmt: skip
    try:
        return _assemble(opened, chosen.mode, draft_limit, policy, target.chat_template, notes)
    except BaseException:
        opened.close()
        raise


def plan(
    model: StrPath = "demo", *, memory: str | int | None = None, held_bytes: int | None = None, **arguments: Any
) -> Plan:
    """What ``load`` would do with the same arguments; nothing is loaded.

    Args:
        memory: as for ``load``; a budget above what the device has is planned for as well.
        held_bytes: what the process holds; asked if None.
        **arguments: further ones of ``load``. Those that make no difference to memory are not taken.

    Raises:
        BudgetExceeded: nothing fits. ModelFileError, VocabularyMismatch, SettingsError: as ``load``.
    """
    ignored = ("cache_dir", "on_wait", "verbose")
    arguments = {name: value for name, value in arguments.items() if name not in ignored}
    engines = ("engine", "draft_engine", "middle_engine")
    names = ("draft", "middle", "speculation", *engines, "draft_limit", "policy", "n_ctx")
    known = {name: arguments.pop(name) for name in names if name in arguments}
    request = _request(model, **known, llama=arguments)
    request.load_libraries()
    if memory is None:
        budget = budget_of(None)
    else:
        held = usage().resident_bytes if held_bytes is None else held_bytes
        budget = Budget(budget_bytes=parse_size(memory), held_bytes=held)
    return request.plan(budget)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What somebody wants to load, checked: files by role, what may be done with them, and what is fixed."""

    files: Mapping[str, ModelFile | None]
    engines: Mapping[str, str]
    settings: LlamaSettings
    fixed: frozenset[str]
    modes: Sequence[Mode]
    notes: Sequence[str]

    def load_libraries(self) -> None:
        """So that what they take is counted before the rest is planned."""
        library()
        if "onnx" in self.engines.values():
            runtime_version()

    def plan(self, budget: Budget) -> Plan:
        with Planner(
            self.files, self.engines, self.settings, fixed=self.fixed, base_bytes=budget.held_bytes
        ) as planner:
            return planner.plan(self.modes, budget.budget_bytes)


def _request(
    model: StrPath, *, llama: dict[str, Any], draft: StrPath | None = None, middle: StrPath | None = None,
    speculation: str | Mode = "auto", engine: str = "auto", draft_engine: str | None = None,
    middle_engine: str | None = None, draft_limit: int | None = None, policy: Policy | None = None,
    n_ctx: int | None = None,
) -> _Request:  # fmt: skip
    for name, value in (("model", model), ("draft", draft), ("middle", middle)):
        if value is not None:
            require_path(name, value)
    family = resolve_family(model)
    draft_path = resolve(draft) if draft is not None else family.draft
    middle_path = resolve(middle) if middle is not None else family.middle
    given = _given(draft_path, middle_path)
    mode = speculation if isinstance(speculation, Mode) else mode_of(speculation, given=given)
    require_models(mode, given)
    engines = engines_of(engine, draft_engine, middle_engine)
    refuse_idle_settings(engines, ("target", *mode.needs), llama)
    target_file = inspect(family.target)
    draft_file = inspect(draft_path) if draft_path and "draft" in mode.needs else None
    middle_file = inspect(middle_path) if middle_path and "middle" in mode.needs else None
    for file in (draft_file, middle_file):
        if file is not None:
            check_pair(target_file, file)
    settings = _settings(n_ctx, target_file, llama)
    if draft_limit is not None:
        require_whole("draft_limit", draft_limit, 1, settings.max_rows - 1)
    notes: list[str] = []
    if 0 < target_file.n_ctx_train < settings.n_ctx:
        notes.append(f"{target_file.path.name} was trained for {target_file.n_ctx_train} tokens, not {settings.n_ctx}")
    files = {"target": target_file, "draft": draft_file, "middle": middle_file}
    modes = _fallbacks(mode) if speculation == "auto" and policy is None else [mode]
    fixed = frozenset(llama) | (frozenset(("n_ctx",)) if n_ctx is not None else frozenset())
    return _Request(files=files, engines=engines, settings=settings, fixed=fixed, modes=modes, notes=notes)


def _fallbacks(mode: Mode) -> list[Mode]:
    """What ``auto`` may fall back to where there is no memory for the first, best first."""
    tables = mode_of("auto", given=frozenset())
    return [mode, *([tables] if mode.needs else []), MODES["off"]]


def possible_modes(model: StrPath = "demo", draft: StrPath | None = None, middle: StrPath | None = None) -> list[str]:
    """Names of the modes for which these arguments of ``load`` bring the models; nothing is opened."""
    family = resolve_family(model)
    given = _given(draft or family.draft, middle or family.middle)
    return [name for name, mode in MODES.items() if given.issuperset(mode.needs)]


def _given(draft: StrPath | None, middle: StrPath | None) -> frozenset[str]:
    return frozenset(role for role, path in (("draft", draft), ("middle", middle)) if path is not None)


def _assemble(
    opened: OpenFamily, mode: Mode, limit: int | None, policy: Policy | None, template: str | None, notes: list[str]
) -> TextModel:
    target, probed = opened.target(trees=mode.target_trees)
    if not target.traits.can_rollback and mode.name != "off":
        notes.append("speculation is off: this model's cache cannot be rolled back")
        mode = MODES["off"]
    elif mode.target_trees and not target.traits.takes_trees:
        notes.append(f"speculation {mode.name!r} is off: this model does not compute trees like sequences")
        mode = MODES["off"]
    elif target.traits.identity == "rounding" and mode.name != "off":
        notes.append("this model's rows round differently from width to width: drafts may change near ties")
    drafter = NoDrafter() if mode.name == "off" else mode.build(opened)
    speculator = Speculator(target, drafter, helpers=opened.helpers)
    most = limit or mode.limit

    def new_policy() -> Policy:
        return AdaptivePolicy(most=most, seconds=probed.seconds) if mode.adapts else FixedPolicy(most)

    first = policy or (new_policy() if mode.adapts else None)
    return TextModel(
        speculator,
        # What an adaptive policy has learned about this device holds for the next reply as well.
        (lambda: first) if first else new_policy,
        opened.tokenizer(),
        mode=mode.name,
        lossless=mode.lossless,
        chat_template=template,
        notes=notes,
        ledger=opened.ledger,
        on_close=opened.close,
    )


def _settings(n_ctx: int | None, target: ModelFile, llama: dict[str, Any]) -> LlamaSettings:
    known = sorted(LlamaSettings.__dataclass_fields__)
    unknown = sorted(set(llama) - set(known))
    if unknown:
        raise SettingsError(f"unknown setting {', '.join(unknown)}", hint=f"known are {', '.join(known)}")
    if n_ctx is None:
        n_ctx = min(target.n_ctx_train or _DEFAULT_N_CTX, _DEFAULT_N_CTX)
    return LlamaSettings(n_ctx=n_ctx, **llama)


def _cache_dir(cache_dir: Path | str | None) -> Path | None:
    if cache_dir == "default":
        from platformdirs import user_cache_path

        return user_cache_path("edge-spec")
    return Path(cache_dir) if cache_dir is not None else None
