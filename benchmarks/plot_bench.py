"""Draws what ``edge-spec bench`` has measured: the speed of the modes, or what decodes cost.

    edge-spec bench MODEL --json > speeds.jsonl
    edge-spec measure MODEL --json > curves.jsonl
    python benchmarks/plot_bench.py speeds.jsonl speeds.svg
    python benchmarks/plot_bench.py curves.jsonl curves.svg

The plot is an SVG, PNG or PDF. Of curves, where a model drafts, it also shows the speed-up of chains by their length,
computed from the curves for tokens that are accepted with the same chance each. It needs matplotlib
(``pip install ".[benchmarks]"`` in a checkout).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_spec.speculation.chooser.curve import CostCurve

__all__ = ["Line", "draw_curves", "draw_speeds", "speed_up_of_chains"]

_CHANCES = (0.3, 0.5, 0.7, 0.9)
_LENGTHS = range(1, 13)

Line = Mapping[str, Any]
"""A line that ``--json`` prints: a model at a depth, or a mode."""


def speed_up_of_chains(target: Mapping[int, float], step: float, length: int, chance: float) -> float:
    """Return what chains of so many tokens bring over plain decoding, if each is accepted with the same chance.

    A round writes ``1 + chance + ... + chance ** length`` tokens for one decode of the target and ``length`` single
    rows of the drafter (Leviathan et al., arXiv 2211.17192, with measured costs). Between measured widths costs are
    taken as linear, and beyond them in proportion.

    Args:
        target: what a decode takes by its number of rows.
        step: what a single row of the drafter takes, in the same unit.
    """
    curve = CostCurve(target)
    tokens = sum(chance**depth for depth in range(length + 1))
    return tokens * curve(1) / (curve(length + 1) + length * step)


def draw_curves(path: Path, lines: Sequence[Line]) -> None:
    """Draw milliseconds by rows; beside it, if a model drafts, the speed-up of chains by their length."""
    curves = [(line["role"], line["depth"], _by_rows(line)) for line in lines]
    drafting = [role for role, _, _ in curves if role != "target"]
    figure, axes = _figure(1 + bool(drafting), "{file} on {engine}".format(**lines[0]))
    for role, depth, milliseconds in curves:
        label = f"{role}, {depth:,} tokens before"
        axes[0].plot(*zip(*sorted(milliseconds.items()), strict=True), marker="o", markersize=3, label=label)
    axes[0].set_xlabel("rows of a decode")
    axes[0].set_ylabel("milliseconds")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    if drafting:
        name = drafting[-1]
        least = min(depth for _, depth, _ in curves)
        costs = {role: milliseconds for role, depth, milliseconds in curves if depth == least}
        for chance in _CHANCES:
            gains = [speed_up_of_chains(costs["target"], costs[name][1], n, chance) for n in _LENGTHS]
            axes[1].plot(_LENGTHS, gains, label=f"{chance:.0%} accepted")
        axes[1].axhline(1, color="#555555", linewidth=0.8)
        axes[1].set_xlabel(f"tokens drafted by the {name} model")
        axes[1].set_ylabel("speed-up, computed from the curves")
        axes[1].legend(frameon=False)
    _save(figure, path)


def draw_speeds(path: Path, lines: Sequence[Line]) -> None:
    """Draw the speed-up of each mode with its 95 % interval."""
    *speeds, last = lines
    figure, (axes,) = _figure(1, "{model} on {engine}".format(**last["verdict"]))
    places = range(len(speeds))
    below = [speed["speed_up"] - speed["interval"][0] for speed in speeds]
    above = [speed["interval"][1] - speed["speed_up"] for speed in speeds]
    axes.barh(places, [speed["speed_up"] for speed in speeds], xerr=[below, above], color="#c2571a", height=0.6)
    axes.set_yticks(places, [f"{speed['mode']}\n{speed['tokens_per_s']:.1f} tokens/s" for speed in speeds])
    axes.invert_yaxis()
    axes.axvline(1, color="#555555", linewidth=0.8)
    axes.set_xlabel("speed-up over plain decoding, and its 95 % interval")
    _save(figure, path)


def _by_rows(line: Line) -> dict[int, float]:
    return {int(n): spent for n, spent in line["milliseconds"].items()}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, metavar="JSONL", help="what --json has printed")
    parser.add_argument("plot", type=Path, metavar="FILE", help="SVG, PNG or PDF")
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.lines.read_text("utf-8").splitlines()]
    (draw_curves if "milliseconds" in lines[0] else draw_speeds)(options.plot, lines)


if __name__ == "__main__":
    main()
