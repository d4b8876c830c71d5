"""Draws the speed of the modes that ``edge-spec bench`` has measured.

    edge-spec bench MODEL --json > speeds.jsonl
    python benchmarks/plot_bench.py speeds.jsonl speeds.svg

The plot is an SVG, PNG or PDF. It needs matplotlib (``pip install ".[benchmarks]"`` in a checkout).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Line", "draw_speeds"]

Line = Mapping[str, Any]
"""A line that ``--json`` prints: a mode, or at last the verdict."""


def draw_speeds(path: Path, lines: Sequence[Line]) -> None:
    """Draw the speed-up of each mode with its 95 % interval."""
    *speeds, last = lines
    figure, axes = _figure("{model} on {engine}".format(**last["verdict"]))
    places = range(len(speeds))
    below = [speed["speed_up"] - speed["interval"][0] for speed in speeds]
    above = [speed["interval"][1] - speed["speed_up"] for speed in speeds]
    axes.barh(places, [speed["speed_up"] for speed in speeds], xerr=[below, above], color="#c2571a", height=0.6)
    axes.set_yticks(places, [f"{speed['mode']}\n{speed['tokens_per_s']:.1f} tokens/s" for speed in speeds])
    axes.invert_yaxis()
    axes.axvline(1, color="#555555", linewidth=0.8)
    axes.set_xlabel("speed-up over plain decoding, and its 95 % interval")
    _save(figure, path)


def _figure(title: str) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("agg")
    # Text stays text, and equal numbers give equal files.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "edge-spec", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.2, 3.4), layout="constrained")
    figure.suptitle(title)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


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
    draw_speeds(options.plot, lines)


if __name__ == "__main__":
    main()
