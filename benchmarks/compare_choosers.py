"""Replays recorded drafts with the chooser of another checkout and with this one: what a change of it brings.

    python benchmarks/compare_choosers.py BEFORE [--traces FOLDER] [--seeds 20] [--only ngram] [--call-ms 0.1] [--json]

BEFORE is the root of another checkout of edge-spec. The recordings, by default those of the tests, are replayed over
seven cost curves, at both of their temperatures, with four things that the chooser believes of the curve at first: the
right one, one twice and one half as dear, and the right one on a device that is noisy and stumbles. A seed is an order
of the replies and a sequence of hiccups, the same for both. Printed is, for each first curve, the mean ratio of the
speeds over all cells, and the lowest cell, each the mean of its seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import mean

from ablate_chooser import CALL_S, CURVES, STEP_S, TRACES, noisy
from replay import Replay, replayed_rounds
from replay_chooser import OWN_S, curve_of, replies_of

FIRST = {"right": 1.0, "twice": 2.0, "half": 0.5, "noise": 1.0}


def cells(traces: Path, *, n_seeds: int, only: str | None, call_s: float) -> dict[str, list[float]]:
    """Tokens per second of every cell, by seed."""
    found: dict[str, list[float]] = {}
    for temperature in (0.0, 0.8):
        recorded = {name: replies for name, replies in replies_of(traces, temperature).items() if only in (None, name)}
        for name in CURVES:
            true = curve_of(name)
            for first, factor in FIRST.items():
                found[f"{name}, {first}, {temperature}"] = speeds = []
                for seed in range(n_seeds):
                    order = list(range(min(map(len, recorded.values()))))
                    random.Random(seed).shuffle(order)
                    rounds = list(
                        replayed_rounds(
                            [
                                Replay(drafter, [replies[n] for n in order], 0.0 if drafter == "ngram" else STEP_S)
                                for drafter, replies in recorded.items()
                            ],
                            noisy(true, seed) if first == "noise" else true,
                            own_s=OWN_S,
                            greedy=temperature == 0,
                            first=lambda n, true=true, factor=factor: factor * true(n),  # type: ignore[misc]
                            call_s=call_s,
                        )
                    )
                    speeds.append(sum(n for n, _ in rounds) / sum(s for _, s in rounds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", help="a single drafter")
    parser.add_argument("--call-ms", type=float, default=1e3 * CALL_S, help="of asking the drafters in a round")
    parser.add_argument("--json", action="store_true", help="the cells as one object")
    parser.add_argument("--cells", action="store_true", help="the speeds with the installed chooser, no more")
    options = parser.parse_args()
    if options.cells:
        print(json.dumps(cells(options.traces, n_seeds=options.seeds, only=options.only, call_s=options.call_ms / 1e3)))
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
