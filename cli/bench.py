"""edge-spec bench: time every way to speculate against plain decoding."""

from __future__ import annotations

import sys
from typing import Any

import click

from edge_spec.cli.check import modes_of, prompts_or_own
from edge_spec.cli.help import Count, Verb, default_of, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import load_arguments, max_tokens_option, model_options
from edge_spec.cli.output import print_json, print_table
from edge_spec.cli.sampler_options import sampler_arguments, sampler_options
from edge_spec.cli.wording import in_options
from edge_spec.evaluation.bench import Speed, bench
from edge_spec.loading import load
from edge_spec.model import TextModel

__all__ = ["command"]

_MAX_TOKENS = default_of(bench, "max_tokens")
_ROUNDS = default_of(bench, "rounds")
_SEED = default_of(bench, "seed")
_LIMIT = 8


@click.command("bench", cls=Verb)
@option("Runs", "--prompts", metavar="FILE", help="One prompt per line, text or JSON. [default: the package's own]")
@option("Runs", "--limit", type=Count(), default=_LIMIT, metavar="N", help="How many of the prompts to use.")
@option("Runs", "--modes", metavar="A,B,...", help="Ways to speculate. [default: auto and all that the models allow]")
@option(
    "Runs", "--rounds", type=Count(), default=_ROUNDS, metavar="N", help="How often every mode writes every prompt."
)
@max_tokens_option(_MAX_TOKENS, "Maximum tokens of a reply.")
@option("Replies", "--seed", type=int, default=_SEED, metavar="N", help="Fixes the draw; each prompt adds its number.")
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object per mode.")
@model_options
@sampler_options()
def command(**values: Any) -> int:
    """Time every way to speculate against plain decoding.

    The modes write the same prompts in turn. What is shown are medians of tokens per second, and of the ratios to
    plain decoding run by run.
    """
    prompts = prompts_or_own(values["prompts"])[: values["limit"]]
    modes = modes_of(values)
    if values["modes"] is None:
        modes.insert(0, "auto")
    modes = ["off", *(mode for mode in modes if mode != "off")]
    arguments, sampling = load_arguments(values), sampler_arguments(values)

    def work() -> int:
        from rich.console import Console
        from rich.progress import Progress

        total = len(modes) * (1 + values["rounds"] * len(prompts))
        is_hidden = values["as_json"] or not sys.stderr.isatty()
        with Progress(console=Console(stderr=True), transient=True, disable=is_hidden) as progress:
            task = progress.add_task("writing", total=total)

            def opened(mode: str) -> TextModel:
                model = load(**arguments, speculation=mode)
                for note in model.notes:
                    said = f"edge-spec: note: {mode}: {in_options(note)}"
                    progress.console.print(said, markup=False, highlight=False, soft_wrap=True)
                return model

            speeds = list(
                bench(
                    opened,
                    prompts,
                    modes=modes,
                    rounds=values["rounds"],
                    max_tokens=values["max_tokens"],
                    on_run=lambda: progress.advance(task),
                    **sampling,
                )
            )
        if values["as_json"]:
            for speed in speeds:
                print_json(vars(speed))
        else:
            _print(speeds)
        return 0

    return interruptible(work, lambda: False)


def _print(speeds: list[Speed]) -> None:
    titles = ("mode", "tokens/s", "speed-up", "tokens/round", "accepted", "drafting", "verifying")
    rows = [
        (
            speed.mode,
            f"{speed.tokens_per_s:.1f}",
            f"{speed.speed_up:.2f}",
            f"{speed.mean_length:.2f}",
            f"{speed.acceptance:.0%}",
            f"{speed.draft_share:.0%}",
            f"{speed.verify_share:.0%}",
        )
        for speed in speeds
    ]
    print_table(titles, rows, right=range(1, len(titles)))
