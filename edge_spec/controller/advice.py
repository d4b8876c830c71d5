"""What users are told about a plan: what differs from what they asked for, and what to ask for instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edge_spec.controller.candidate import Candidate
from edge_spec.controller.candidates import Estimates, candidates, smallest
from edge_spec.controller.request import Request
from edge_spec.errors import BudgetExceeded
from edge_spec.memory import format_size
from edge_spec.speculation.modes import MODES

__all__ = ["notes_of", "refusal", "thresholds_text"]

_MAKES_POSSIBLE = {"tables": "n-gram speculation", "drafter": "a drafter model", "hierarchy": "the hierarchy"}


def thresholds_text(least: Mapping[str, Candidate]) -> str:
    """The smallest budgets by what they make possible, see ``smallest``, as the end of a sentence."""
    fits = least["fits"]
    parts = [f"minimum {format_size(fits.needed_bytes)} (context {fits.n_ctx}, cache {'/'.join(fits.kv)})"]
    for name, what in _MAKES_POSSIBLE.items():
        if name in least:
            parts.append(f"{what} from {format_size(least[name].needed_bytes)}")
    return ", ".join(parts)


def notes_of(request: Request, chosen: Candidate, budget_bytes: int) -> Iterator[str]:
    """Sentences about what differs from what was asked for."""
    for role, engine in chosen.engines.items():
        name, first = request.files[role].path.name, request.engines[role][0]
        if role in request.passed_over:
            yield f"{engine.title} runs {name}: {request.passed_over[role]}"
        elif engine is not first:
            yield f"{engine.title} runs {name}: on {first.title} less context would fit the memory"
    asked, budget = request.settings, f"to fit {format_size(budget_bytes)}"
    if chosen.mode is not request.modes[0]:
        yield f"speculation is {chosen.mode.name!r} instead of {request.modes[0].name!r} {budget}"
    if chosen.n_ctx > asked.n_ctx:
        yield f"the context is {chosen.n_ctx}, more than the {asked.n_ctx} asked for"
    elif chosen.n_ctx < asked.n_ctx:
        yield f"the context is {chosen.n_ctx} instead of {asked.n_ctx} {budget}"
    whole = chosen.engines["target"].resolve(request.target, asked)
    for what, kind, instead in zip(("keys", "values"), chosen.kv, (whole.kv_k, whole.kv_v), strict=True):
        if kind != instead:
            yield f"{what} are cached as {kind} instead of {instead} {budget}"
    chunk = chosen.settings.prefill_chunk
    if chunk != asked.prefill_chunk:
        yield f"prompts are read {chunk} tokens at a time instead of {asked.prefill_chunk} {budget}"
    for name, value in chosen.settings.extras.items():
        if name not in asked.extras:
            yield f"it runs with `{name}={value!r}`, which is slower, {budget}"


def refusal(request: Request, estimates: Estimates, error: BudgetExceeded) -> BudgetExceeded:
    """The error for a request of which nothing fits, with what would fit."""
    least = smallest(request, estimates)
    hints = [thresholds_text(least)]
    nearest = _nearest(request, estimates, error.allowed_bytes)
    if nearest is not None:
        changes = ", ".join(_changes(request, nearest))
        hints.insert(0, f"with {f'`{changes}`' if changes else nearest.described} it would fit")
    others = set(request.in_question) - set(least["fits"].engines.values())
    if others:
        titles = " and ".join(sorted(each.title for each in others))
        name = least["fits"].engines["target"].name
        hints.append(f"without {titles} (`engine={name!r}`) the program itself takes less")
    what = f"{request.target.path.name} as asked for" if nearest is not None else request.target.path.name
    return BudgetExceeded(
        what, needed_bytes=error.needed_bytes, allowed_bytes=error.allowed_bytes, hint="; ".join(hints)
    )


def _nearest(request: Request, estimates: Estimates, budget_bytes: int) -> Candidate | None:
    """What would fit if nothing but the files were fixed, speculating as requested if that does."""
    modes = tuple(mode for mode in MODES.values() if set(mode.needs) <= request.files.keys())
    for group in candidates(request.unrestricted(modes), estimates):
        fitting = [candidate for candidate in group if candidate.needed_bytes <= budget_bytes]
        if fitting:
            return max(fitting, key=lambda each: (each.mode in request.modes, each.speed, -each.needed_bytes))
    return None


def _changes(request: Request, other: Candidate) -> Iterator[str]:
    """What would have to be asked for instead to get another candidate, as arguments."""
    asked, found = request.settings, other.settings
    if other.mode not in request.modes:
        yield f"speculation={other.mode.name!r}"
    if found.n_ctx < request.min_n_ctx:
        yield f"n_ctx={found.n_ctx}"
    if {"kv_k", "kv_v"} & request.fixed and (found.kv_k, found.kv_v) != (asked.kv_k, asked.kv_v):
        yield from (f"{name}={kind!r}" for name, kind in zip(("kv_k", "kv_v"), other.kv, strict=True))
    for name in sorted({"prefill_chunk", "max_rows"} & request.fixed):
        if getattr(found, name) != getattr(asked, name):
            yield f"{name}={getattr(found, name)}"
    for name in sorted(found.extras.keys() & request.fixed):
        if found.extras[name] != asked.extras[name]:
            yield f"{name}={found.extras[name]!r}"
