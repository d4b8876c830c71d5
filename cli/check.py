"""edge-spec check: compare the tokens of every way to speculate with plain decoding."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from importlib.resources import as_file, files
from typing import Any

import click

from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import load_arguments, model_options, sampler_arguments, sampler_options
from edge_spec.cli.prompts import read_prompts
from edge_spec.evaluation.check import Comparison, RandomPolicy, Unchecked, check
from edge_spec.loading import load, possible_modes
from edge_spec.speculation.modes import MODES

__all__ = ["command", "modes_of", "prompts_or_own"]


def prompts_or_own(path: str | None) -> list[str]:
    """The prompts of a file, or those that come with the package."""
    if path is not None:
        return read_prompts(path)
    with as_file(files("edge_spec.cli") / "prompts.txt") as own:
        return read_prompts(str(own))


@click.command("check")
@model_options
@click.option("--prompts", metavar="FILE", help="One prompt per line, text or JSON. [default: the package's own]")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N prompts.")
@click.option("--modes", metavar="A,B,...", help="Ways to speculate. [default: all that the given models allow]")
@click.option("--temperatures", default="0,0.7,1", show_default=True, metavar="X,Y,...")
@click.option("-n", "--max-tokens", type=click.IntRange(1), default=96, show_default=True, metavar="N")
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="Each prompt adds its number.")
@click.option("--raw", is_flag=True, help="Continue prompts as they are, without the chat template.")
@click.option("--ignore-eos", is_flag=True, help="Never let the model end a reply itself.")
@click.option("--random-limits", is_flag=True, help="Draft a random number of tokens in every round.")
@sampler_options(temperature=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per comparison.")
def command(**values: Any) -> int:
    """Compare the tokens of every way to speculate with plain decoding.

    Exits with 0 if every token of every reply is the same, with 1 if any differs.
    """
    prompts = prompts_or_own(values["prompts"])[: values["limit"]]
    modes = modes_of(values)
    temperatures = [_number(text) for text in values["temperatures"].split(",")]
    policy = RandomPolicy(values["draft_limit"] or 9) if values["random_limits"] else None
    arguments = load_arguments(values)

    def work() -> int:
        comparisons: list[Comparison] = []
        unchecked: list[str] = []
        for found in check(
            lambda mode: load(**arguments, speculation=mode, policy=policy),
            prompts,
            modes=modes,
            temperatures=temperatures,
            max_tokens=values["max_tokens"],
            seed=values["seed"],
            raw=values["raw"],
            ignore_eos=values["ignore_eos"],
            **sampler_arguments(values),
        ):
            if isinstance(found, str):
                click.echo(f"edge-spec: note: {found}", err=True)
                continue
            if isinstance(found, Unchecked):
                unchecked.append(found.mode)
                continue
            comparisons.append(found)
            if values["as_json"]:
                click.echo(json.dumps(vars(found)))
        if not comparisons and not unchecked:
            raise click.ClickException("nothing was compared; no prompt fits the context, or there is no mode but off")
        if comparisons and not values["as_json"]:
            _print(comparisons)
        if unchecked:
            raise click.ClickException(f"not checked, since this model cannot do it: {', '.join(unchecked)}")
        return int(any(found.first_difference is not None for found in comparisons))

    return interruptible(work, lambda: False)


def modes_of(values: Mapping[str, Any]) -> list[str]:
    """The modes that ``--modes`` names, or all that can be had; one that lacks a model is refused at once."""
    possible = ["auto", *possible_modes(values["model"], values["draft"], values["intermediate"])]
    if values["modes"] is None:
        return [mode for mode in possible if mode != "auto"]
    modes = [mode.strip() for mode in values["modes"].split(",")]
    for mode in modes:
        if mode not in MODES and mode != "auto":
            raise click.BadParameter(f"{mode!r} is none of auto, {', '.join(MODES)}", param_hint="--modes")
        if mode not in possible:
            needed = " and ".join(f"--{need}" for need in MODES[mode].needs)
            raise click.UsageError(f"mode {mode!r} needs {needed}")
    return modes


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number", param_hint="--temperatures") from None


def _print(comparisons: list[Comparison]) -> None:
    from rich.console import Console
    from rich.table import Table

    groups: dict[tuple[str, float], list[Comparison]] = defaultdict(list)
    for found in comparisons:
        groups[found.mode, found.temperature].append(found)
    table = Table("mode", "temperature", "replies", "tokens", "equal", "mean length")
    for (mode, temperature), found_here in groups.items():
        equal = sum(found.first_difference is None for found in found_here)
        table.add_row(
            mode,
            f"{temperature:g}",
            str(len(found_here)),
            str(sum(found.n_tokens for found in found_here)),
            f"{equal} of {len(found_here)}",
            f"{sum(found.mean_length for found in found_here) / len(found_here):.2f}",
        )
    console = Console()
    console.print(table)
    different = [found for found in comparisons if found.first_difference is not None]
    for found in different[:10]:
        console.print(
            f"differs: {found.mode}, temperature {found.temperature:g}, prompt {found.prompt + 1}, "
            f"from token {found.first_difference}"
        )
    n_tokens = sum(found.n_tokens for found in comparisons)
    verdict = "every token is the same" if not different else f"{len(different)} replies differ"
    console.print(f"{len(comparisons)} replies, {n_tokens} tokens: {verdict}")
