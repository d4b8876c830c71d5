"""edge-spec plan: show what would be loaded into a memory budget, and why."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import click

from edge_spec.cli.options import load_arguments, model_options
from edge_spec.controller.plan import Candidate, Plan
from edge_spec.loading import plan
from edge_spec.memory import format_size, probe, reserve_bytes
from edge_spec.speculation.modes import MODES

__all__ = ["command"]

_BAR = 40
_TERMINAL = ("terminal.rich_display", "terminal.terminal_reader", "terminal.completion")
_UNNAMED = "when the model is loaded here for the first time"
_SAYS = {
    "fits": "runs at all",
    "tables": "speculates, with tables",
    "drafter": "speculates with a drafter",
    "hierarchy": "speculates with a hierarchy",
}


@click.command("plan")
@model_options
@click.option(
    "--speculation", type=click.Choice(["auto", *MODES]), default="auto", show_default=True, help="How to draft."
)
@click.option("--chat", is_flag=True, help="Count what a chat in a terminal needs as well.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(**values: Any) -> int:
    """Show what would be loaded into a memory budget, and why.

    Only headers are read. A budget covers all memory of the process's own and the mapped weights, which decoding
    touches for every token. Any budget can be asked about, also that of another computer. The program counts as
    "edge-spec run" has it, or with --chat as a talk in a terminal does.

    \b
    Examples:
      edge-spec plan --memory 100MiB
      edge-spec plan llama-3.2-3b-q4_0.gguf --draft llama-3.2-1b-q4_0.gguf --memory 4GiB --ctx 8192
    """
    # A budget holds the program, too.
    for name in ("chat", *(_TERMINAL if values["chat"] else ())):
        import_module(f"edge_spec.cli.{name}")
    arguments = load_arguments(values)
    found = plan(arguments.pop("model"), **arguments, speculation=values["speculation"])
    if values["as_json"]:
        click.echo(json.dumps(as_json(found), ensure_ascii=False))
    else:
        _print(found)
    return 0


def as_json(found: Plan) -> dict[str, Any]:
    """A plan as JSON can hold it."""
    return {
        "budget_bytes": found.budget_bytes,
        "why": found.why,
        "engine": found.engine,
        "profile": dict(found.profile) if found.profile is not None else None,
        "chosen": _candidate(found.chosen),
        "runners_up": [_candidate(other) for other in found.runners_up],
        "thresholds": dict(found.thresholds),
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "choices": dict(candidate.choices),
        "needed_bytes": candidate.needed_bytes,
        "peak_bytes": candidate.peak_bytes,
        "reserve_bytes": reserve_bytes(candidate.peak_bytes),
        "process_bytes": candidate.base_bytes,
        "tables": dict(candidate.tables),
        "lines": {role: part.lines() for role, part in candidate.parts.items()},
    }


def _print(found: Plan) -> None:
    from rich.console import Console
    from rich.table import Table

    chosen, console = found.chosen, Console(highlight=False)
    profile = found.profile["name"] if found.profile is not None else f"{found.engine}, to be named {_UNNAMED}"
    console.print(f"{chosen.described}\n{found.why}\nnumerics profile {profile}\n", markup=False)
    total_bytes = probe().total_bytes
    if found.budget_bytes > total_bytes:
        console.print(f"this computer has {format_size(total_bytes)}, less than that budget\n", markup=False)
    table = Table("", "who", "what", "bytes", box=None, pad_edge=False)
    table.columns[3].justify = "right"
    rows = [("process", "interpreter and libraries", chosen.base_bytes)]
    rows += [("process", name, n_bytes) for name, n_bytes in chosen.tables.items()]
    rows += [(role, name, n_bytes) for role, part in chosen.parts.items() for name, n_bytes in part.lines().items()]
    if chosen.peak_bytes > chosen.held_bytes:
        rows.append(("", "while loading or reading", chosen.peak_bytes - chosen.held_bytes))
    rows.append(("", "reserve", reserve_bytes(chosen.peak_bytes)))
    for who, what, n_bytes in rows:
        table.add_row(_bar(n_bytes, found.budget_bytes), who, what, format_size(n_bytes))
    left = found.budget_bytes - chosen.needed_bytes
    table.add_row(_bar(left, found.budget_bytes, "·"), "", "left", format_size(left))
    table.add_row("", "", "budget", format_size(found.budget_bytes))
    console.print(table)
    if found.runners_up:
        console.print("\nwould fit as well:")
        for other in found.runners_up:
            console.print(f"  {other.described}: {format_size(other.needed_bytes)}", markup=False)
    console.print("\nleast budgets:")
    for name, n_bytes in found.thresholds.items():
        console.print(f"  {format_size(n_bytes):>10}  {_SAYS[name]}", markup=False)


def _bar(n_bytes: int, budget_bytes: int, sign: str = "█") -> str:
    n = round(_BAR * n_bytes / budget_bytes)
    return sign * n if n else "▏"
