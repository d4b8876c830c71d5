"""edge-spec measure: time decodes by their rows and by the text before them, and remember it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import click

from edge_spec.cli.help import Verb, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import load_arguments, models_options
from edge_spec.cli.output import print_json, print_notes, print_table, progress_console
from edge_spec.cli.printing import echo
from edge_spec.evaluation.curves import CostOfRows, cost_curves, costs_by_role, n_decodes, role_of
from edge_spec.loading import load

__all__ = ["command"]


@click.command("measure", cls=Verb)
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object per model and depth.")
@models_options
def command(**values: Any) -> int:
    """Time decodes of MODELs and of the models that draft for them, and remember it.

    For each MODEL, or the default one, every model that "auto" opens (target, intermediate model, drafter) is timed by
    the rows of a decode and by the text before them. Later runs with the same engine, threads and types of cache begin
    with that, and "edge-spec plan" says what pays. Texts and numerics profiles never depend on it. Ctrl-C ends it with
    what there is.
    """
    every = [load_arguments({**values, "model": model}) for model in values["models"] or (None,)]
    curves = _Curves(as_json=values["as_json"])
    return interruptible(lambda: curves.print(every), curves.stop)


class _Curves:
    """Measures what decodes of every open model cost, by rows and by the text before them, and prints it.

    What was measured is remembered for later runs and plans. Ctrl-C ends it with what there is.

    Args:
        as_json: print a JSON object per model and depth instead of a table.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
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
                echo(("\n" if number else "") + "{file} on {engine}".format(**about))
                _print(curves)
            if self._stopped.is_set():
                echo("edge-spec: stopped; what was measured so far is remembered", err=True)
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
        echo("nothing was measured yet; give it more time, or a larger --ctx")
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
    echo("\nmilliseconds of a decode, medians; per row: what a further row takes, in decodes of one row")
