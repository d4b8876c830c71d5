"""Replays recorded drafts with the chooser of another checkout and with this one: what a change of it brings.

    python benchmarks/compare_choosers.py BEFORE [--traces FOLDER ...] [--seeds 20] [--only ngram] [--json]

BEFORE is the root of another checkout of edge-spec. The recordings, by default all of the tests, are replayed over the
cost curves of ``ablate_chooser.py``, at both of their temperatures, with four things that the chooser believes of the
curve at first: the right one, one twice and one half as dear, and the right one on a device that is noisy and stumbles.
A seed is an order of the replies and a sequence of hiccups, the same for both. Printed is, for each first curve, the
mean ratio of the speeds over all cells, and the lowest cell, each the mean of its seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from ablate_chooser import CURVES, TRACES, noisy, replayed
from replay_chooser import device_of, replies_of

FIRST = {"right": 1.0, "twice": 2.0, "half": 0.5, "noise": 1.0}


def cells(traces: Sequence[Path], *, n_seeds: int, only: str | None) -> dict[str, list[float]]:
    """Tokens per second of every cell, by seed."""
    found: dict[str, list[float]] = {}
    for folder in traces:
        for temperature in (0.0, 0.8):
            recorded = {name: each for name, each in replies_of(folder, temperature).items() if only in (None, name)}
            for name in CURVES if recorded else ():
                device = device_of(name)
                for first, factor in FIRST.items():
                    found[f"{folder.name}, {name}, {first}, {temperature}"] = speeds = []
                    for seed in range(n_seeds):
                        order = list(range(min(map(len, recorded.values()))))
                        random.Random(seed).shuffle(order)
                        speeds.append(
                            replayed(
                                {drafter: [replies[n] for n in order] for drafter, replies in recorded.items()},
                                device,
                                temperature,
                                curve=noisy(device.curve, seed) if first == "noise" else device.curve,
                                first=lambda n, device=device, factor=factor: factor * device.curve(n),  # type: ignore[misc]
                            )
                        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("--traces", type=Path, nargs="+", default=TRACES, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", help="a single drafter")
    parser.add_argument("--json", action="store_true", help="the cells as one object")
    parser.add_argument("--cells", action="store_true", help="the speeds with the installed chooser, no more")
    options = parser.parse_args()
    if options.cells:
        print(json.dumps(cells(options.traces, n_seeds=options.seeds, only=options.only)))
        return
    here = Path(__file__).parents[1]
    before, now = (
        json.loads(
            subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--cells"],
                env={**os.environ, "PYTHONPATH": str(checkout)},
                check=True,
                stdout=subprocess.PIPE,
            ).stdout
        )
        for checkout in (options.before.resolve(), here)
    )
    ratios = {cell: mean(new / old for new, old in zip(now[cell], before[cell], strict=True)) for cell in before}
    if options.json:
        print(json.dumps(ratios))
        return
    for first in FIRST:
        print(f"{first:6} {mean(ratio for cell, ratio in ratios.items() if f', {first},' in cell):.4f}")
    lowest = min(ratios, key=ratios.__getitem__)
    print(f"mean of {len(ratios)} cells {mean(ratios.values()):.4f}, lowest {ratios[lowest]:.4f} ({lowest})")


if __name__ == "__main__":
    main()
