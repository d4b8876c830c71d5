"""What bench measures instead of modes: the costs of decodes, and drafts to replay policies on."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import click

from edge_spec.cli.output import print_json, print_notes, print_table, progress_console
from edge_spec.cli.plotting import draw_curves
from edge_spec.cli.prompts import Prompt
from edge_spec.evaluation.curves import CostOfRows, cost_curves, costs_by_role, n_decodes, role_of
from edge_spec.evaluation.recording import record
from edge_spec.loading import load, possible_modes
from edge_spec.speculation.modes import MODES, mode_of

__all__ = ["Curves", "write_recordings"]


class Curves:
    """Measures what decodes of every open model cost, by rows and by the text before them, and prints it.

    What was measured is remembered for later runs and plans. Ctrl-C ends it with what there is.

    Args:
        values: the options ``as_json`` and ``plot``.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._as_json, self._plot = values["as_json"], values["plot"]
        self._is_measuring = False
        self._stopped = threading.Event()

    def stop(self) -> bool:
        """End soon; False if nothing is measured yet."""
        self._stopped.set()
        return self._is_measuring

    def print(self, every: Sequence[Mapping[str, Any]]) -> int:
        """Measure models one after the other, and return the exit code.

        Args:
            every: arguments of ``load``, for each of them.
        """
        for number, arguments in enumerate(every):
            curves, about = self._measured(arguments)
            if self._as_json:
                for curve in curves:
                    print_json({**about, **vars(curve), "role": role_of(curve.model), "row": curve.row})
            else:
                click.echo(("\n" if number else "") + "{file} on {engine}".format(**about))
                _print(curves)
            if self._plot is not None and curves:
                draw_curves(self._plot, curves, "{file} on {engine}".format(**about))
            if self._stopped.is_set():
                click.echo("edge-spec: stopped; what was measured so far is remembered", err=True)
                return 130
        return 0

    def _measured(self, arguments: Mapping[str, Any]) -> tuple[list[CostOfRows], dict[str, Any]]:
        from rich.progress import Progress

        is_hidden = self._as_json or not sys.stderr.isatty()
        with (
            load(**arguments, speculation="auto") as model,
            Progress(console=progress_console(), transient=True, disable=is_hidden) as progress,
        ):
            self._is_measuring = True
            print_notes(model.notes)
            task = progress.add_task("measuring", total=n_decodes(model))
            measured = cost_curves(model, on_decode=lambda: progress.advance(task), is_over=self._stopped.is_set)
            curves = sorted(measured, key=lambda curve: (list(model.followed).index(curve.model), curve.depth))
            model.keep_costs(costs_by_role(curves))
            self._is_measuring = False
            return curves, {"file": model.info.files["target"].name, "engine": model.profile.engine}


def _print(curves: Sequence[CostOfRows]) -> None:
    if not curves:
        click.echo("nothing was measured yet; give it more time, or a larger --ctx")
        return
    widths = sorted({n for curve in curves for n in curve.milliseconds})
    titles = ("model", "depth", *(f"{n} row{'s' * (n > 1)}" for n in widths), "per row")
    rows = [
        (
            role_of(curve.model),
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
