"""What somebody wants to load, checked, and how it is planned."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge_spec.arguments import require_path, require_whole
from edge_spec.controller.budget import Budget
from edge_spec.controller.candidates import MIN_N_CTX, Planner
from edge_spec.controller.engine_choice import AUTO, engines_of, refuse_idle_settings, settle_engines
from edge_spec.controller.plan import Plan
from edge_spec.engines.llama import LlamaSettings
from edge_spec.engines.llama.library import library
from edge_spec.engines.onnx.runner import runtime_version
from edge_spec.engines.onnx.transcription.store import Transcriptions
from edge_spec.errors import BudgetExceeded, SettingsError
from edge_spec.models import ModelFile, check_pair, inspect, is_published, resolve, resolve_family
from edge_spec.speculation.modes import MODES, Mode, mode_of, require_models
from edge_spec.speculation.policy import Policy

__all__ = ["Request", "StrPath", "given_roles", "request_of"]

StrPath = str | os.PathLike[str]

_DEFAULT_N_CTX = 4096


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be loaded.

    Attributes:
        files: by role.
        engines: by role; ``auto`` until ``settled``.
        asked: settings of engines that were asked for, by name.
        settings: all of them.
        fixed: names of those that a plan must not change.
        modes: ways to speculate that will do, best first.
        notes: sentences that the user should know.
        min_n_ctx: tokens of context below which nothing may go.
        min_rows: rows of a decode that drafts of the length asked for take.
        max_n_ctx: tokens of context up to which more than those of ``settings`` are requested for.
        otherwise: engines that would do as well, where the choice was left open.
        chose: whether it was, so that ONNX Runtime has been looked at, whatever runs the models then.
    """

    files: Mapping[str, ModelFile]
    engines: Mapping[str, str]
    asked: Mapping[str, Any]
    settings: LlamaSettings
    fixed: frozenset[str]
    modes: Sequence[Mode]
    notes: tuple[str, ...] = ()
    min_n_ctx: int = MIN_N_CTX
    min_rows: int = 1
    max_n_ctx: int = 0
    otherwise: Mapping[str, str] | None = None
    chose: bool = False

    def load_libraries(self) -> None:
        """So that what they take is counted before the rest is planned."""
        library()
        if {"onnx", AUTO} & set(self.engines.values()):
            runtime_version()

    def settled(self, transcriptions: Transcriptions, budget: Budget) -> Request:
        """With an engine for every role that left it open.

        ONNX Runtime's caches are larger: where memory has room for more context with llama.cpp, that is what runs it.
        """

        def n_ctx_on(engines: Mapping[str, str]) -> int:
            try:
                least = replace(self, engines=engines, max_n_ctx=0)
                return int(least.plan(budget).chosen.configuration.settings.n_ctx)
            except BudgetExceeded:
                return 0

        engines, notes = settle_engines(self.engines, self.files, self.asked, transcriptions, n_ctx_on=n_ctx_on)
        other = {role: "llama" if self.engines[role] == AUTO else engine for role, engine in engines.items()}
        return replace(
            self,
            engines=engines,
            notes=(*self.notes, *notes),
            otherwise=other if other != engines else None,
            chose=AUTO in self.engines.values(),
        )

    def thresholds(self, budget: Budget) -> dict[str, int]:
        """The least budget by what it makes possible, on the engines that take least."""
        least: dict[str, int] = {}
        for engines in filter(None, (self.engines, self.otherwise)):
            with self._planner(engines, budget) as planner:
                found = planner.thresholds(self.modes, budget.budget_bytes)
            least |= {name: min(n_bytes, least.get(name, n_bytes)) for name, n_bytes in found.items()}
        return least

    def plan(self, budget: Budget) -> Plan:
        """The best way to run it within a budget; thresholds are the least of all engines. See ``Planner.plan``."""
        try:
            return self._plan(budget)
        except BudgetExceeded as error:
            if self.chose:
                error.hint += "; without ONNX Runtime (--engine llama) the program itself takes less"
            raise

    def _plan(self, budget: Budget) -> Plan:
        if self.otherwise is None:
            return self._plan_on(self.engines, budget)
        with self._planner(self.otherwise, budget) as planner:
            elsewhere = planner.thresholds(self.modes, budget.budget_bytes)
        try:
            found = self._plan_on(self.engines, budget)
        except BudgetExceeded as error:
            # What fits least is what anybody wants to know now.
            if elsewhere["fits"] < error.needed_bytes:
                return self._plan_on(self.otherwise, budget)
            raise
        least = {name: min(n, elsewhere.get(name, n)) for name, n in found.thresholds.items()}
        return replace(found, thresholds=least)

    def _plan_on(self, engines: Mapping[str, str], budget: Budget) -> Plan:
        with self._planner(engines, budget) as planner:
            return planner.plan(self.modes, budget.budget_bytes, max_n_ctx=self.max_n_ctx)

    def _planner(self, engines: Mapping[str, str], budget: Budget) -> Planner:
        return Planner(
            self.files,
            engines,
            self.settings,
            fixed=self.fixed,
            min_rows=self.min_rows,
            base_bytes=budget.held_bytes,
        )


def request_of(
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
    **llama: Any,
) -> Request:
    """A request of arguments of ``load``; only headers of files are read.

    Raises:
        ModelFileError, VocabularyMismatch, SettingsError: see ``load``.
    """
    for name, value in (("model", model), ("draft", draft), ("intermediate", intermediate)):
        if value is not None:
            require_path(name, value)
    family = resolve_family(model)
    paths = {
        "target": family.target,
        "draft": resolve(draft) if draft is not None else family.draft,
        "intermediate": resolve(intermediate) if intermediate is not None else family.intermediate,
    }
    given = given_roles(paths["draft"], paths["intermediate"])
    mode = speculation if isinstance(speculation, Mode) else mode_of(speculation, given=given)
    require_models(mode, given)
    roles = ("target", *mode.needs)
    published = [role for role, path in paths.items() if path is not None and is_published(path)]
    engines = engines_of(engine, draft_engine, intermediate_engine, published=published)
    refuse_idle_settings(engines, roles, llama)
    files = {role: inspect(path) for role, path in paths.items() if role in roles and path is not None}
    target = files["target"]
    for role in mode.needs:
        check_pair(target, files[role])
    if n_ctx is not None and min_n_ctx is not None:
        raise SettingsError("n_ctx and min_n_ctx both say how long the context is", hint="give one of them")
    given_n_ctx = n_ctx if min_n_ctx is None else min_n_ctx
    settings = _settings(given_n_ctx, target, llama)
    if draft_limit is not None:
        require_whole("draft_limit", draft_limit, 1, settings.max_rows - 1)
    notes = []
    if 0 < target.n_ctx_train < settings.n_ctx:
        notes.append(f"{target.path.name} was trained for {target.n_ctx_train} tokens, not {settings.n_ctx}")
    return Request(
        files=files,
        engines={role: engines[role] for role in roles},
        asked=llama,
        settings=settings,
        fixed=frozenset(llama) | (frozenset(("n_ctx",)) if given_n_ctx is not None else frozenset()),
        min_n_ctx=MIN_N_CTX if given_n_ctx is None else settings.n_ctx,
        min_rows=1 if draft_limit is None else draft_limit + 1,
        max_n_ctx=0 if min_n_ctx is None else target.n_ctx_train or _DEFAULT_N_CTX,
        modes=_fallbacks(mode) if speculation == "auto" and policy is None else [mode],
        notes=tuple(notes),
    )


def given_roles(draft: StrPath | None, intermediate: StrPath | None) -> frozenset[str]:
    """Roles of the smaller models that are given."""
    return frozenset(role for role, path in (("draft", draft), ("intermediate", intermediate)) if path is not None)


def _fallbacks(mode: Mode) -> list[Mode]:
    """What ``auto`` may fall back to where there is no memory for the first, best first."""
    tables = mode_of("auto", given=frozenset())
    return [mode, *([tables] if mode.needs else []), MODES["off"]]


def _settings(n_ctx: int | None, target: ModelFile, llama: Mapping[str, Any]) -> LlamaSettings:
    known = sorted(LlamaSettings.__dataclass_fields__)
    unknown = sorted(set(llama) - set(known))
    if unknown:
        raise SettingsError(f"unknown setting {', '.join(unknown)}", hint=f"known are {', '.join(known)}")
    if n_ctx is None:
        n_ctx = min(target.n_ctx_train or _DEFAULT_N_CTX, _DEFAULT_N_CTX)
    return LlamaSettings(n_ctx=n_ctx, **llama)
