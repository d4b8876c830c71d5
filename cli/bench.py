"""edge-spec bench: time every way to speculate against plain decoding."""

from __future__ import annotations

import json
from typing import Any

import click

from edge_spec.cli.check import modes_of, prompts_or_own
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import load_arguments, model_options, sampler_arguments, sampler_options
from edge_spec.evaluation.bench import Speed, bench
from edge_spec.loading import load
from edge_spec.model import TextModel

__all__ = ["command"]


@click.command("bench")
@model_options
@click.option("--prompts", metavar="FILE", help="One prompt per line, text or JSON. [default: the package's own]")
@click.option("--limit", type=click.IntRange(1), default=8, show_default=True, metavar="N", help="Prompts used.")
@click.option("--modes", metavar="A,B,...", help="Ways to speculate. [default: auto and all that the models allow]")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, metavar="N")
@click.option("-n", "--max-tokens", type=click.IntRange(1), default=128, show_default=True, metavar="N")
@click.option("--seed", type=int, default=1, show_default=True, metavar="N")
@sampler_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per mode.")
def command(**values: Any) -> int:
    """Time every way to speculate against plain decoding.

    The modes write the same prompts in turn; medians of tokens per second, and of the ratios to plain decoding
    run by run.
    """
    prompts = prompts_or_own(values["prompts"])[: values["limit"]]
    modes = modes_of(values)
    if values["modes"] is None:
        modes.insert(0, "auto")
    modes = ["off", *(mode for mode in modes if mode != "off")]
    arguments = load_arguments(values)

    def work() -> int:
        from rich.console import Console
        from rich.progress import Progress

        total = len(modes) * (1 + values["rounds"] * len(prompts))
        with Progress(console=Console(stderr=True), transient=True, disable=values["as_json"]) as progress:
            task = progress.add_task("writing", total=total)

            def opened(mode: str) -> TextModel:
                model = load(**arguments, speculation=mode)
                for note in model.notes:
                    progress.console.print(f"edge-spec: note: {mode}: {note}", markup=False, highlight=False)
                return model

            speeds = list(
                bench(
                    opened,
                    prompts,
                    modes=modes,
                    rounds=values["rounds"],
                    max_tokens=values["max_tokens"],
                    seed=values["seed"],
                    on_run=lambda: progress.advance(task),
                    **sampler_arguments(values),
                )
            )
        if values["as_json"]:
            for speed in speeds:
                click.echo(json.dumps(vars(speed)))
        else:
            _print(speeds)
        return 0

    return interruptible(work, lambda: False)


def _print(speeds: list[Speed]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("mode", "tokens/s", "to off", "mean length", "accepted", "drafting", "verifying")
    for speed in speeds:
        table.add_row(
            speed.mode,
            f"{speed.tokens_per_s:.1f}",
            f"{speed.speed_up:.2f}x",
            f"{speed.mean_length:.2f}",
            f"{speed.acceptance:.0%}",
            f"{speed.draft_share:.0%}",
            f"{speed.verify_share:.0%}",
        )
    Console().print(table)
