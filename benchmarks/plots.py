"""Plots of benchmarks as small SVG files; they need matplotlib (``pip install ".[benchmarks]"``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot_sizes", "plot_sweep"]

MIB = 1 << 20
_COLORS = {"llama": "#1f6fb4", "onnx": "#c2571a"}
_NAMES = {"llama": "llama.cpp", "onnx": "ONNX Runtime, our kernels"}


def _figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("svg")
    # Text stays text, and equal numbers give equal files.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "edge-spec", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def plot_sizes(path: Path, sizes: Sequence[tuple[int, int]]) -> None:
    """Errors of the predicted size by measured size, and the bounds that they must keep.

    Args:
        sizes: predicted and measured bytes of each plan.
    """
    figure, axes = _figure(6.4, 3.4)
    measured = [m / MIB for _, m in sizes]
    low, high = 0.8 * min(measured), 1.25 * max(measured)
    marks = [low * (high / low) ** (step / 200) for step in range(201)]
    axes.fill_between(
        marks,
        [-100 * max(0.02, 4 / m) for m in marks],
        [100 * max(0.05, 8 / m) for m in marks],
        color="#9bbf85",
        alpha=0.35,
        linewidth=0,
        label="bounds: 5 % or 8 MiB above, 2 % or 4 MiB below",
    )
    axes.axhline(0, color="#555555", linewidth=0.8)
    axes.plot(measured, [100 * (p / m - 1) for p, m in sizes], "o", color=_COLORS["llama"], markersize=4)
    axes.set_xscale("log")
    ticks = [size for size in (64, 128, 256, 512, 1024, 2048, 4096, 8192) if low <= size <= high]
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.minorticks_off()
    axes.set_xlim(low, high)
    axes.set_ylim(-8, 12)
    axes.set_xlabel("highest resident size, MiB")
    axes.set_ylabel("predicted above measured, %")
    axes.set_title(f"{len(sizes)} plans")
    axes.legend(frameon=False, loc="upper right")
    _save(figure, path)


def plot_sweep(path: Path, found: Mapping[str, Any]) -> None:
    """Tokens per second by memory without the target's weights, per engine, and the naive setup.

    Args:
        found: as ``budget_sweep.py`` writes it.
    """
    figure, axes = _figure(6.4, 3.8)
    for engine, points in found["engines"].items():
        whole = [p for p in points if p.get("tokens_per_s") and not p.get("degradations")]
        drawn = sorted((p["memory_bytes"] / MIB, p["tokens_per_s"]) for p in whole)
        axes.plot(
            [m for m, _ in drawn],
            [s for _, s in drawn],
            "o-",
            markersize=4,
            linewidth=1,
            color=_COLORS[engine],
            label=_NAMES[engine],
        )
        keeps = found["keeps"].get(engine)
        if keeps:
            axes.annotate(
                f"{keeps['share_of_speed']:.0%} of the speed",
                (keeps["memory_bytes"] / MIB, keeps["tokens_per_s"]),
                textcoords="offset points",
                xytext=(0, 9),
                ha="center",
                color=_COLORS[engine],
            )
    reference = found["naive"]
    if reference.get("tokens_per_s"):
        ends = [reference["memory_bytes"] / MIB, reference["reserved_bytes"] / MIB]
        axes.plot(
            ends,
            [reference["tokens_per_s"]] * 2,
            "s-",
            color="#555555",
            markersize=4,
            linewidth=1,
            label="llama.cpp's defaults: touched, reserved",
        )
        axes.axvline(0.35 * ends[1], color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("memory without the target's weights, MiB")
    axes.set_ylabel("tokens per second")
    axes.legend(frameon=False, loc="lower right")
    _save(figure, path)
