"""Choose the best candidate that fits a budget.

After SpecMemo (arXiv 2506.01986): what every candidate takes is known before anything is loaded, so the smallest
budget at which each kind of speculation becomes possible is known as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edge_spec.controller.candidates import (
    STAGES,
    TOKEN_BYTES,
    Candidate,
    Estimates,
    Estimators,
    candidates,
    frugal,
    smallest_of,
    stage_of,
)
from edge_spec.controller.measurements import Gain, Measurements
from edge_spec.controller.request import Request
from edge_spec.engines.base import Engine, Opener
from edge_spec.engines.settings import ThreadCounts
from edge_spec.errors import Arguments, BudgetExceeded, Sentence
from edge_spec.memory import Ledger, format_size, reserve_bytes
from edge_spec.memory.budget import Budget
from edge_spec.models.model_file import CTX_STEP
from edge_spec.speculation.modes import MODES

__all__ = ["Alternative", "Plan", "choose", "make_plan", "measured", "notes_of", "outlook", "refusal"]


def notes_of(request: Request, chosen: Candidate, budget_bytes: int) -> Iterator[str]:
    """Return sentences about the differences from the request."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for role, engine in chosen.engines.items():
        first = request.engines[role][0]
        why = request.passed_over.get(role)
        if why is None and engine is not first:
            why = f"on {first.title} less context would fit the memory"
        if why is not None:
            reasons.setdefault((engine.title, why), []).append(request.files[role].path.name)
    for (title, why), names in reasons.items():
        yield Sentence("{title} runs {names}: {why}", title=title, names=" and ".join(names), why=why)
    asked, budget = request.settings, f"to fit {format_size(budget_bytes)}"
    if chosen.mode is not request.modes[0]:
        why = request.why_not_run(request.modes[0], chosen.engines)
        reason = f"because {why}" if why is not None else budget
        yield f"speculation is {chosen.mode.name!r} instead of {request.modes[0].name!r} {reason}"
    if chosen.n_ctx > asked.n_ctx:
        yield f"the context is {chosen.n_ctx}, more than the {asked.n_ctx} asked for"
    elif chosen.n_ctx < asked.n_ctx:
        yield f"the context is {chosen.n_ctx} instead of {asked.n_ctx} {budget}"
    whole = chosen.engines["target"].resolve(request.target, asked)
    for what, kind, instead in zip(("keys", "values"), chosen.kv, (whole.kv_k, whole.kv_v), strict=True):
        if kind != instead:
            yield f"{what} are cached as {kind} instead of {instead} {budget}, which can change words"
    chunk = chosen.settings.prefill_chunk
    if chunk != asked.prefill_chunk:
        yield f"prompts are read {chunk} tokens at a time instead of {asked.prefill_chunk} {budget}"
    held, (n_experts, n_used) = chosen.settings.held_experts, request.target.experts
    if held:
        # Assume that tokens use all experts equally often.
        size = format_size(chosen.parts["target"].paged_bytes * n_used // n_experts)
        yield (
            f"of the {n_experts} experts of a layer {held} stay in memory {budget}; the others are read from the disk "
            f"when a token uses them, about {size} a token, which is slower"
        )
    for name, value in chosen.settings.extras.items():
        if name not in asked.extras:
            yield Sentence("it runs with {it}, which is slower, {budget}", it=Arguments({name: value}), budget=budget)


def refusal(
    request: Request, estimates: Estimates, error: BudgetExceeded, budget: Budget | None = None
) -> BudgetExceeded:
    """Return the error for a request that does not fit, with the changes that would.

    Args:
        budget: says which models the process holds already.
    """
    nearest, needed_bytes = _nearest(request, estimates, error.allowed_bytes), error.needed_bytes
    if nearest is not None:
        changes = Arguments(_changes(request, nearest))
        what = f"{request.target.path.name} as asked for"
        hint = Sentence("with {changes} it would fit", changes=changes or nearest.described)
    else:
        ways, what = frugal(request, estimates), request.target.path.name
        fits = smallest_of(ways)["fits"]
        needed_bytes = min((way.needed_bytes for way in ways if way.mode in request.modes), default=needed_bytes)
        shown = f"context {fits.n_ctx}, cache {'/'.join(fits.kv)}; {format_size(fits.base_bytes)} without the model"
        hint = Sentence(
            "raise {memory}, the minimum is {size} ({shown})", size=format_size(fits.needed_bytes), shown=shown
        )
    if budget is not None and budget.loaded:
        # Caches are planned for a full context but grow as they fill.
        told = " and ".join(f"{format_size(n_bytes)} for {name}" for name, n_bytes in budget.loaded)
        hint = Sentence(
            "{hint}; this process holds {held} already, up to {told}: {close()} what is not needed",
            hint=hint,
            held=format_size(budget.held_bytes),
            told=told,
        )
    return BudgetExceeded(what, needed_bytes=needed_bytes, allowed_bytes=error.allowed_bytes, hint=hint)


def _nearest(request: Request, estimates: Estimates, budget_bytes: int) -> Candidate | None:
    """Return a candidate that fits if only the files are fixed, speculating as requested if that fits."""
    possible = [
        mode for mode in MODES.values() if set(mode.needs) <= request.files.keys() and mode not in request.modes
    ]
    others = sorted(possible, key=lambda mode: STAGES.index(stage_of(mode)), reverse=True)
    for group in candidates(request.unrestricted((*request.modes, *others)), estimates):
        fitting = [candidate for candidate in group if candidate.needed_bytes <= budget_bytes]
        if fitting:
            return next((each for each in fitting if each.mode in request.modes), fitting[0])
    return None


def _changes(request: Request, other: Candidate) -> Iterator[tuple[str, Any]]:
    """Yield the arguments, with values, that would lead to another candidate."""
    asked, found = request.settings, other.settings
    if other.mode not in request.modes:
        yield "speculation", other.mode.name
    if found.n_ctx < request.min_n_ctx:
        yield "n_ctx", found.n_ctx
    if {"kv_k", "kv_v"} & request.fixed and (found.kv_k, found.kv_v) != (asked.kv_k, asked.kv_v):
        yield from zip(("kv_k", "kv_v"), other.kv, strict=True)
    for name in sorted({"prefill_chunk", "max_rows"} & request.fixed):
        if getattr(found, name) != getattr(asked, name):
            yield name, getattr(found, name)
    for name in sorted(found.extras.keys() & request.fixed):
        if found.extras[name] != asked.extras[name]:
            yield name, found.extras[name]


@dataclass(frozen=True)
class Alternative:
    """Arguments of ``load``, and the candidate that they lead to.

    Attributes:
        arguments: of ``load``, in place of those of the same names.
        candidate: the way to run that is then chosen.
    """

    arguments: Mapping[str, Any]
    candidate: Candidate


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chosen candidate, and why; of ``plan`` also its description before anything is loaded.

    Attributes:
        chosen: the way to run.
        budget_bytes: what it has to fit.
        why: in a sentence.
        runners_up: other ways that fit, best first, one of each stage.
        notes: sentences about what differs from what was asked for.
        least: the smallest candidate of all (``fits``), and of every stage but the first.
        profile: the numerics profile that results will carry, its name and facts; None where it is not known yet.
        threads: how many threads compute the target, as far as that is known; None where it was not asked.
        gains: what each stage has brought on this device, where that was measured.
        pays: what needs least of the ways that pay, by stage, as far as that was measured.
        disk_bytes: bytes written to the disk before the chosen candidate first runs.
        alternatives: what other options would bring in this budget, in drafters or in context.
    """

    chosen: Candidate
    budget_bytes: int
    why: str
    runners_up: tuple[Candidate, ...] = ()
    notes: tuple[str, ...] = ()
    least: Mapping[str, Candidate] = field(default_factory=dict)
    profile: Mapping[str, str] | None = None
    threads: ThreadCounts | None = None
    gains: Mapping[str, Gain] = field(default_factory=dict)
    pays: Mapping[str, Candidate] = field(default_factory=dict)
    disk_bytes: int = 0
    alternatives: tuple[Alternative, ...] = ()

    @property
    def engine(self) -> str:
        """The engine that runs the target."""
        return self.chosen.engines["target"].name

    @property
    def thresholds(self) -> dict[str, int]:
        """The smallest budget of each kind of drafting; ``least`` has their contexts and caches."""
        return {name: self.least[name].needed_bytes for name in ("fits", *STAGES[1:]) if name in self.least}

    @property
    def speed_ups(self) -> dict[str, float]:
        """Speed-ups over plain decoding, by stage, that were measured here with an interval that excludes 1."""
        return {stage: gain.speed_up for stage, gain in self.gains.items() if gain.is_sure}

    @property
    def share_bytes(self) -> int:
        """What the chosen way to run needs of a budget that several models share: without what the process holds with
        or without models."""
        own = self.chosen.peak_bytes - self.chosen.base_bytes
        return own + reserve_bytes(own)

    def ledger(self, name: str = "", *, within: Ledger | None = None) -> Ledger:
        """Return a ledger with the budget, its reserve, and what the process holds besides models and drafters.

        Args:
            name: of the model, see ``Ledger``.
            within: the ledger of a budget that several models share, which has the bytes of the process.

        Raises:
            BudgetExceeded: less than ``share_bytes`` is left there.
        """
        if within is not None:
            reserve = self.share_bytes - (self.chosen.peak_bytes - self.chosen.base_bytes)
            ledger = Ledger(reserve=reserve, name=name, within=within, kept_bytes=self.share_bytes)
        else:
            ledger = Ledger(self.budget_bytes, reserve=reserve_bytes(self.chosen.peak_bytes), name=name)
            ledger.claim("process", "interpreter and libraries", self.chosen.base_bytes)
        ledger.claim("process", TOKEN_BYTES, self.chosen.tables[TOKEN_BYTES])
        if self.chosen.reading_bytes:
            ledger.claim("process", "while a prompt is read", self.chosen.reading_bytes)
        return ledger


def outlook(request: Request, budget: Budget) -> tuple[Candidate, Candidate | None, int]:
    """Return the plan for models of which only the shapes are known; no library is asked.

    Returns:
        The first choice, whatever it needs; what fits the budget, None if nothing does; and the smallest budget that
        anything fits.

    Raises:
        SettingsError: what was asked for contradicts a model.
    """
    with Estimators() as estimators:
        estimates = Estimates(request.files, estimators, budget=budget, n_texts=request.n_texts, rough=True)
        wanted = next(candidates(request, estimates))[0]
        if wanted.needed_bytes <= budget.budget_bytes:
            return wanted, wanted, wanted.needed_bytes
        least = smallest_of(frugal(request, estimates))["fits"].needed_bytes
        fits = least <= budget.budget_bytes
        return wanted, make_plan(request, budget, {}, estimators, rough=True).chosen if fits else None, least


def make_plan(
    request: Request,
    budget: Budget,
    openers: Mapping[Engine, Opener],
    estimators: Estimators,
    *,
    rough: bool = False,
    advises: bool = True,
) -> Plan:
    """Return the best way to run a request within a budget.

    Args:
        openers: make what has to be made once for a file, which can fail; nothing is, where an engine has none.
        rough: ask no library, for files that are not there.
        advises: say in a refusal what would fit, which takes longer than to find that nothing does.

    Raises:
        BudgetExceeded: nothing fits; the error says what would, and from which budgets on.
        SettingsError: what was asked for contradicts a model.
    """
    estimates = Estimates(request.files, estimators, budget=budget, n_texts=request.n_texts, rough=rough)
    while True:
        try:
            found = choose(candidates(request, estimates), budget.budget_bytes, what=request.target.path.name)
        except BudgetExceeded as error:
            raise (refusal(request, estimates, error, budget) if advises else error) from None
        found = _with_more_experts(found, request.target.experts[0], estimates)
        found = _with_more_context(found, request.max_n_ctx, estimates)
        failures = dict(_failures(request, found.chosen, openers))
        if not failures:
            notes = (*request.notes, *budget.notes, *notes_of(request, found.chosen, found.budget_bytes))
            return replace(found, notes=tuple(dict.fromkeys(notes)))
        for role, why in failures.items():
            request = request.without(role, why)


def measured(ways: Sequence[Candidate], measurements: Measurements) -> tuple[dict[str, Gain], dict[str, Candidate]]:
    """Return the measured gains of ways to draft, and what needs least of those that pay, both by stage."""
    known = [(way, gain) for way in ways if way.mode.limit and (gain := measurements.gain(way)) is not None]
    gains: dict[str, Gain] = {}
    for way, gain in known:
        gains[way.stage] = max(gains.get(way.stage, gain), gain, key=lambda each: (each.pays, each.speed_up))
    pays = smallest_of(way for way, gain in known if gain.pays)
    return gains, {stage: way for stage, way in pays.items() if stage in STAGES}


def choose(groups: Iterable[Sequence[Candidate]], budget_bytes: int, *, what: str) -> Plan:
    """Return the plan for a budget: the first candidate that fits.

    Args:
        groups: see ``candidates``.
        what: is to be run, as the beginning of a sentence.

    Raises:
        BudgetExceeded: nothing fits.
    """
    needed: list[int] = []
    for number, group in enumerate(groups):
        needed += (candidate.needed_bytes for candidate in group)
        fitting = [candidate for candidate in group if candidate.needed_bytes <= budget_bytes]
        if fitting:
            chosen, *others = fitting
            best_of_stage: dict[str, Candidate] = {}
            for other in others:
                best_of_stage.setdefault(other.stage, other)
            return Plan(
                chosen=chosen,
                budget_bytes=budget_bytes,
                why=_why(group[: group.index(chosen)], changed=number > 0),
                runners_up=tuple(best_of_stage.values())[:3],
            )
    raise BudgetExceeded(what, needed_bytes=min(needed), allowed_bytes=budget_bytes, hint=Sentence("raise {memory}"))


def _why(before: Sequence[Candidate], *, changed: bool) -> str:
    reason = "the first choice that fits" if before or changed else "what was asked for"
    if changed:
        reason += ", after reducing settings that you did not set"
    if before:
        next_up = min(before, key=lambda other: other.needed_bytes)
        reason += f"; {next_up.described} would need {format_size(next_up.needed_bytes)}"
    return reason


def _with_more_experts(found: Plan, n_experts: int, estimates: Estimates) -> Plan:
    """Return the same plan with as many experts in memory as fit."""
    chosen, least = found.chosen, found.chosen.settings.held_experts
    if not least:
        return found

    def of(n: int) -> Candidate:
        return estimates.candidate(chosen.mode, chosen.engines, replace(chosen.settings, held_experts=n))

    counts = range(least + 1, n_experts)
    n_fitting = bisect_left(counts, 1, key=lambda n: of(n).needed_bytes > found.budget_bytes)
    return replace(found, chosen=of(counts[n_fitting - 1])) if n_fitting else found


def _with_more_context(found: Plan, max_n_ctx: int, estimates: Estimates) -> Plan:
    """Return the same plan with as much more context as fits."""
    chosen, least = found.chosen, found.chosen.n_ctx
    if max_n_ctx <= least:
        return found

    def of(n_ctx: int) -> Candidate:
        return estimates.candidate(chosen.mode, chosen.engines, replace(chosen.settings, n_ctx=n_ctx))

    places = [*range(least - least % CTX_STEP + CTX_STEP, max_n_ctx, CTX_STEP), max_n_ctx]
    n_fitting = bisect_left(places, 1, key=lambda n_ctx: of(n_ctx).needed_bytes > found.budget_bytes)
    if not n_fitting:
        return found
    why = f"{found.why}; memory has room for more than the {least} tokens of context asked for"
    return replace(found, chosen=of(places[n_fitting - 1]), why=why)


def _failures(request: Request, chosen: Candidate, openers: Mapping[Engine, Opener]) -> Iterator[tuple[str, str]]:
    """Prepare files; yield the roles for which that failed and another engine remains, with the reason."""
    for role, engine in chosen.engines.items():
        first, *others = request.engines[role]
        if others and engine is first and engine in openers:
            why = openers[engine].prepare(request.files[role])
            if why is not None:
                yield role, why
