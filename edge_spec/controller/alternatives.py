"""Options that would bring more drafters or a longer context within the same budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from edge_spec.controller.candidates import STAGES, Candidate, stage_of
from edge_spec.controller.options import LoadOptions
from edge_spec.controller.plan import Alternative, Plan
from edge_spec.speculation.modes import MODES

__all__ = ["find_alternatives"]

Planned = Callable[[Mapping[str, Any]], Candidate | None]
"""Returns what is chosen with these arguments in place of those that were given; None if nothing fits."""


def find_alternatives(
    asked: LoadOptions, found: Plan, engines: Iterable[str], planned: Planned
) -> Iterator[Alternative]:
    """Yield what leads to more drafters, for each stage above the chosen one, and then what to a longer context.

    Args:
        found: the plan, with what needs least.
        engines: names of those that may run the target.
    """
    chosen, budget_bytes = found.chosen, found.budget_bytes
    named = list(engines)
    ways = [{}, *({"engine": name} for name in named if len(named) > 1)]
    longest = chosen.n_ctx
    for stage in STAGES[STAGES.index(chosen.stage) + 1 :]:
        if stage in found.least and found.least[stage].needed_bytes <= budget_bytes:
            best = _with_drafters(asked, stage, ways, planned)
            if best is not None:
                yield best
                longest = max(longest, best.candidate.n_ctx)
    best = _with_context(asked, chosen, ways, planned)
    if best is not None and best.candidate.n_ctx > longest:
        yield best


def _with_drafters(
    asked: LoadOptions, stage: str, engines: Sequence[Mapping[str, Any]], planned: Planned
) -> Alternative | None:
    """Return what leads to the longest context with this kind of drafting."""
    named = [{**engine, "speculation": name} for engine in engines for name in MODES if stage_of(MODES[name]) == stage]
    best = _longest(each for each in _planned(named, planned) if each.candidate.stage == stage)
    if best is None or asked.speculation != "auto":
        return best
    # `auto` leaves out drafts that do not pay, so what keeps it is better.
    n_ctx = {} if asked.n_ctx or asked.min_n_ctx else {"n_ctx": best.candidate.n_ctx}
    given = {"kv_k", "kv_v"} & asked.settings.keys()
    kinds = dict(zip(("kv_k", "kv_v"), best.candidate.kv, strict=True)) if not given else {}
    every = [{**engine, **more} for more in ({}, n_ctx, kinds, {**n_ctx, **kinds}) for engine in engines]
    keeping = (each for each in _planned(sorted(every, key=len), planned) if each.candidate.stage == stage)
    return next((each for each in keeping if each.candidate.n_ctx == best.candidate.n_ctx), best)


def _with_context(
    asked: LoadOptions, chosen: Candidate, engines: Sequence[Mapping[str, Any]], planned: Planned
) -> Alternative | None:
    """Return what leads to the longest context on another engine or with fewer drafters."""
    if asked.n_ctx or (asked.speculation == "auto" and not asked.min_n_ctx):
        # Such a context is given, or the longest is chosen before everything else.
        return None
    lower = STAGES[: STAGES.index(chosen.stage)]
    modes = [{}, *({"speculation": name} for name in MODES if stage_of(MODES[name]) in lower)]
    return _longest(_planned([{**engine, **mode} for mode in modes for engine in engines], planned))


def _planned(every: Iterable[Mapping[str, Any]], planned: Planned) -> Iterator[Alternative]:
    for arguments in every:
        candidate = planned(arguments)
        if candidate is not None:
            yield Alternative(arguments, candidate)


def _longest(every: Iterable[Alternative]) -> Alternative | None:
    """Return the one with the longest context, and of these with the most drafters and the fewest arguments."""
    return max(
        every,
        key=lambda each: (each.candidate.n_ctx, STAGES.index(each.candidate.stage), -len(each.arguments)),
        default=None,
    )
