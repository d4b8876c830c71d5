"""What bench measures instead of modes: the costs of decodes, and drafts to replay policies on."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import click

from edge_spec.cli.output import print_json, print_table, progress_console
from edge_spec.cli.plotting import draw_curves
from edge_spec.cli.prompts import Prompt
from edge_spec.evaluation.curves import CostOfRows, cost_curves, n_decodes
from edge_spec.evaluation.recording import record
from edge_spec.loading import load, possible_modes
from edge_spec.speculation.modes import MODES, mode_of

__all__ = ["print_curves", "write_recordings"]


def print_curves(values: Mapping[str, Any], arguments: Mapping[str, Any]) -> int:
    """Print what decodes of every open model cost, by rows and by the text before them."""
    from rich.progress import Progress

    is_hidden = values["as_json"] or not sys.stderr.isatty()
    with (
        load(**arguments, speculation="auto") as model,
        Progress(console=progress_console(), transient=True, disable=is_hidden) as progress,
    ):
        task = progress.add_task("measuring", total=n_decodes(model))
        title = f"{model.info.name} on {model.profile.engine}"
        curves = list(cost_curves(model, on_decode=lambda: progress.advance(task)))
    if values["plot"] is not None:
        draw_curves(values["plot"], curves, title)
    if values["as_json"]:
        for curve in curves:
            print_json({**vars(curve), "row": curve.row})
    else:
        _print(curves)
    return 0


def _print(curves: Sequence[CostOfRows]) -> None:
    widths = sorted({n for curve in curves for n in curve.milliseconds})
    titles = ("model", "depth", *(f"{n} row{'s' * (n > 1)}" for n in widths), "per row")
    rows = [
        (
            curve.model,
            f"{curve.depth:,}",
            *(f"{curve.milliseconds[n]:.2f}" if n in curve.milliseconds else "" for n in widths),
            f"{curve.row:.3f}",
        )
        for curve in curves
    ]
    print_table(titles, rows, right=range(1, len(titles)))
    click.echo("\nmilliseconds of a decode, medians; per row: what a further row takes, in decodes of one row")


def write_recordings(
    values: Mapping[str, Any], prompts: Sequence[Prompt], arguments: Mapping[str, Any], sampling: Mapping[str, Any]
) -> int:
    """Write what the drafters of ``auto`` would draft at every place of the model's own text."""
    given = values["model"], values["draft"], values["intermediate"]
    possible = possible_modes(*given, engine=values["engine"])
    auto = mode_of("auto", given=frozenset(need for mode in possible for need in MODES[mode].needs))
    folder: Path = values["record"]
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        files: dict[str, TextIO] = {}
        for recording in record(
            lambda mode: load(**arguments, speculation=mode),
            auto,
            [prompt.text for prompt in prompts],
            max_tokens=values["max_tokens"],
            **sampling,
        ):
            if recording.drafter not in files:
                path = folder / f"{recording.drafter}-t{recording.temperature:.1f}.jsonl"
                files[recording.drafter] = opened.enter_context(path.open("w", encoding="utf-8"))
                click.echo(f"edge-spec: writing {path}", err=True)
            print(json.dumps(recording.as_json()), file=files[recording.drafter])
    return 0
