"""edge-spec plan: show what would be loaded into a memory budget, and why."""

from __future__ import annotations

from typing import Any

import click

from edge_spec.cli.help import Verb, option
from edge_spec.cli.options import load_arguments, model_options, speculation_option
from edge_spec.cli.output import print_json, print_notes, print_table
from edge_spec.cli.printing import echo
from edge_spec.cli.process import import_all
from edge_spec.cli.wording import in_options
from edge_spec.controller.candidates import Candidate
from edge_spec.controller.plan import Plan
from edge_spec.errors import Arguments, Sentence
from edge_spec.loading import plan
from edge_spec.memory import format_size, probe, reserve_bytes

__all__ = ["command"]

_BAR = 40
_UNNAMED = "named when the model is first loaded here"
_UNMEASURED = "Whether drafts pay here is not measured yet: run edge-spec bench."
_SAYS = {
    "fits": "minimum",
    "tables": "n-gram speculation",
    "drafter": "speculation with a drafter",
    "hierarchy": "speculation with a hierarchy",
}


@click.command("plan", cls=Verb)
@option("Output", "--chat", is_flag=True, help="Count what a chat in a terminal needs as well.")
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object.")
@speculation_option
@model_options
def command(**values: Any) -> int:
    """Show what would be loaded into a memory budget, and why.

    Only headers are read. A budget covers all private memory of the process and the mapped weights, which decoding
    touches for every token. It may also be the budget of another computer. The program counts as "edge-spec run" has
    it, or with --chat as a chat in a terminal does.

    \b
    Examples:
      edge-spec plan --memory 1GiB
      edge-spec plan llama-3.2-3b-q4_0.gguf --draft llama-3.2-1b-q4_0.gguf --memory 4GiB --ctx 8192
    """
    import_all(chat=values["chat"])
    arguments = load_arguments(values)
    found = plan(**arguments)
    if values["as_json"]:
        print_json(as_json(found))
    else:
        _print(found)
    return 0


def as_json(found: Plan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    return {
        "budget_bytes": found.budget_bytes,
        "why": found.why,
        "notes": list(found.notes),
        "engine": found.engine,
        "profile": dict(found.profile) if found.profile is not None else None,
        "threads": found.threads._asdict() if found.threads is not None else None,
        "chosen": _candidate(found.chosen),
        "runners_up": [_candidate(other) for other in found.runners_up],
        "alternatives": [
            {"arguments": dict(each.arguments), **_candidate(each.candidate)} for each in found.alternatives
        ],
        "thresholds": dict(found.thresholds),
        "least": {name: _least(found.least[name]) for name in found.thresholds},
        "speed_ups": found.speed_ups,
        "gains": {stage: vars(gain) for stage, gain in found.gains.items()},
        "pays": {stage: _least(candidate) for stage, candidate in found.pays.items()},
        "disk_bytes": found.disk_bytes,
    }


def _least(candidate: Candidate) -> dict[str, Any]:
    """Return the smallest candidate in words, with its context and cache."""
    return {
        "needed_bytes": candidate.needed_bytes,
        "speculation": candidate.mode.name,
        "engine": candidate.engines["target"].name,
        "n_ctx": candidate.n_ctx,
        "kv": "/".join(candidate.kv),
        "held_experts": candidate.settings.held_experts,
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "choices": dict(candidate.choices),
        "needed_bytes": candidate.needed_bytes,
        "peak_bytes": candidate.peak_bytes,
        "reserve_bytes": reserve_bytes(candidate.peak_bytes),
        "process_bytes": candidate.base_bytes,
        "tables": dict(candidate.tables),
        "paged_bytes": {role: part.paged_bytes for role, part in candidate.parts.items() if part.paged_bytes},
        "lines": {role: part.lines() for role, part in candidate.parts.items()},
    }


def _print(found: Plan) -> None:
    print_notes(found.notes)
    chosen = found.chosen
    profile = found.profile["name"] if found.profile is not None else f"{found.engine}, {_UNNAMED}"
    echo(f"{chosen.described}\n{found.why}\nnumerics profile {profile}")
    if found.threads is not None:
        echo(f"threads {found.threads}")
    echo()
    total_bytes = probe().total_bytes
    if found.budget_bytes > total_bytes:
        echo(f"this computer has {format_size(total_bytes)}, less than that budget\n")
    rows = [("process", "interpreter and libraries", chosen.base_bytes)]
    rows += [("process", name, n_bytes) for name, n_bytes in chosen.tables.items()]
    rows += [(role, name, n_bytes) for role, part in chosen.parts.items() for name, n_bytes in part.lines().items()]
    if chosen.peak_bytes > chosen.held_bytes:
        rows.append(("", "while loading or reading", chosen.peak_bytes - chosen.held_bytes))
    rows.append(("", "reserve", reserve_bytes(chosen.peak_bytes)))
    # Scale bars by the used bytes: a budget may be a hundred times larger.
    most = max(n_bytes for _, _, n_bytes in rows)
    cells = [(who, what, _tenths(n_bytes), "#" * max(1, round(_BAR * n_bytes / most))) for who, what, n_bytes in rows]
    cells.append(("", "left", _tenths(found.budget_bytes - chosen.needed_bytes), ""))
    cells.append(("", "budget", _tenths(found.budget_bytes), ""))
    print_table(("who", "what", "MiB", ""), cells, right=(2,))
    paged_bytes = sum(part.paged_bytes for part in chosen.parts.values())
    if paged_bytes:
        echo(f"\nexperts left on the disk, read when a token uses them: {_mib(paged_bytes)} MiB")
    if found.disk_bytes:
        echo(f"\non the disk, written when it is first loaded: {_mib(found.disk_bytes)} MiB in another order")
    if found.runners_up or found.alternatives:
        echo("\nother options that fit:")
        for other in found.runners_up:
            echo(f"  {_mib(other.needed_bytes)} MiB  {other.described}")
        for each in found.alternatives:
            how = in_options(Sentence("with {options}", options=Arguments(each.arguments)))
            echo(f"  {_mib(each.candidate.needed_bytes)} MiB  {how}: {each.candidate.described}")
    echo("\nsmallest budgets:")
    for name, n_bytes in found.thresholds.items():
        least = found.least[name]
        ways = [f"a context of {least.n_ctx}", f"a cache of {'/'.join(least.kv)}"]
        ways += [f"{least.settings.held_experts} experts of a layer"] if least.settings.held_experts else []
        echo(f"  {_mib(n_bytes):>10} MiB  {_SAYS[name]}, with {', '.join(ways[:-1])} and {ways[-1]}")
        paying = _paying(found, name)
        if paying:
            echo(f"{'':16}  {paying}")
    if len(found.thresholds) > 1 and not found.gains:
        echo(f"\n{_UNMEASURED}")


def _paying(found: Plan, stage: str) -> str:
    """Return from which budget on a kind of speculation pays here; empty if that was not measured."""
    gain, way = found.gains.get(stage), found.pays.get(stage)
    if gain is None:
        return ""
    interval = f"{gain.low:.2f} to {gain.high:.2f}"
    speed_up = f"{gain.speed_up:.2f} ({interval})" if gain.is_sure else interval
    measured = (
        f"{gain.mode} was {speed_up} times as fast as plain decoding here, "
        f"with {gain.drafted:,} tokens drafted in {gain.rounds:,} rounds"
    )
    if way is None:
        return f"not shown to pay: {measured}"
    return f"pays from {_mib(way.needed_bytes)} MiB, with a cache of {'/'.join(way.kv)}: {measured}"


def _tenths(n_bytes: int) -> str:
    """Format bytes in tenths of MiB, so that rows of a table add up to its last one, but for a tenth or two."""
    return f"{n_bytes / (1 << 20):,.1f}"


def _mib(n_bytes: int) -> str:
    """Format bytes in MiB, rounded up, so that the printed size is enough."""
    return f"{-(-n_bytes // (1 << 20)):,}"
