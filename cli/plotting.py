"""What bench draws: cost curves with the expected speed-up by draft length, or the speed of the modes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from edge_spec.evaluation.bench import Speed
from edge_spec.evaluation.curves import CostOfRows, speed_up_of_chains

__all__ = ["draw_curves", "draw_speeds", "require_plot"]

_FORMATS = (".svg", ".png", ".pdf")
_CHANCES = (0.3, 0.5, 0.7, 0.9)
_LENGTHS = range(1, 13)


def require_plot(path: Path) -> None:
    """Refuse, before anything is measured, what could not be drawn."""
    if path.suffix.lower() not in _FORMATS:
        raise click.UsageError(f"--plot is {path.name!r}; give a file that ends in {', '.join(_FORMATS)}")
    if not path.parent.is_dir():
        raise click.UsageError(f"--plot is in {str(path.parent)!r}, which is not a folder")
    if find_spec("matplotlib") is None:
        raise click.ClickException('plots need matplotlib; run: pip install "edge-spec[benchmarks]"')


def draw_curves(path: Path, curves: Sequence[CostOfRows], title: str) -> None:
    """Milliseconds by rows; beside it, if a model drafts, the speed-up of chains by their length.

    Chains are computed from the curves, for tokens that are accepted with the same chance each.
    """
    drafting = [name for name in dict.fromkeys(curve.model for curve in curves) if name != "target"]
    figure, axes = _figure(1 + bool(drafting), title)
    for curve in curves:
        widths = sorted(curve.milliseconds)
        label = f"{curve.model}, {curve.depth:,} tokens before"
        axes[0].plot(widths, [curve.milliseconds[n] for n in widths], marker="o", markersize=3, label=label)
    axes[0].set_xlabel("rows of a decode")
    axes[0].set_ylabel("milliseconds")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    if drafting:
        name = drafting[-1]
        depth = min(curve.depth for curve in curves)
        costs = {curve.model: curve for curve in curves if curve.depth == depth}
        for chance in _CHANCES:
            gains = [speed_up_of_chains(costs["target"], costs[name], n, chance) for n in _LENGTHS]
            axes[1].plot(_LENGTHS, gains, label=f"{chance:.0%} accepted")
        axes[1].axhline(1, color="#555555", linewidth=0.8)
        axes[1].set_xlabel(f"tokens drafted by {name!r}")
        axes[1].set_ylabel("speed-up, computed from the curves")
        axes[1].legend(frameon=False)
    _save(figure, path)


def draw_speeds(path: Path, speeds: Sequence[Speed], title: str) -> None:
    """The speed-up of each mode with its 95 % interval."""
    figure, (axes,) = _figure(1, title)
    places = range(len(speeds))
    below = [speed.speed_up - speed.interval[0] for speed in speeds]
    above = [speed.interval[1] - speed.speed_up for speed in speeds]
    axes.barh(places, [speed.speed_up for speed in speeds], xerr=[below, above], color="#c2571a", height=0.6)
    axes.set_yticks(places, [f"{speed.mode}\n{speed.tokens_per_s:.1f} tokens/s" for speed in speeds])
    axes.invert_yaxis()
    axes.axvline(1, color="#555555", linewidth=0.8)
    axes.set_xlabel("speed-up over plain decoding, and its 95 % interval")
    _save(figure, path)


def _figure(n: int, title: str) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("agg")
    # Text stays text, and equal numbers give equal files.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "edge-spec", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, n, figsize=(5.2 * n, 3.4), layout="constrained", squeeze=False)
    figure.suptitle(title)
    for each in axes[0]:
        each.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    metadata = {"Date": None, "Creator": None} if path.suffix.lower() == ".svg" else None
    figure.savefig(path, metadata=metadata, dpi=150)
    pyplot.close(figure)
