"""Replays recorded drafts against cost curves: what the chooser would have reached, in seconds instead of hours.

    python benchmarks/replay_chooser.py TRACES [--curve ours|llama|flat|cliff|fours|0.25 ...] [--step-ms 0.3]
        [--call-ms 0.1] [--first-factor 2] [--json]

TRACES is a folder of recordings as ``record_drafts.py`` writes them, one per drafter and temperature. Time is
computed, not measured: a decode of n rows costs what the curve says, each drafted level what its drafter costs. Printed
are speeds relative to plain decoding: of the best fixed size in hindsight, and of the chooser with each of the
drafters and with all of them, over all rounds and after the first 30.

Where there are recordings NAME-chain and NAME-tree, NAME is made of them: the chain, and the siblings along it that the
tree has, as ``auto`` drafts them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from replay import Curve, Replay, Reply, fixed_speed, read_recordings, replayed_rounds

from edge_spec.speculation.tree import Tree

OWN_S, STEP_S, CALL_S = 0.4e-3, 0.3e-3, 0.1e-3
"""Bookkeeping and sampling of a round, drafting of a level where a model drafts, and asking all drafters."""

WARM_UP = 30


class Device(NamedTuple):
    """Seconds of a round on a device.

    Attributes:
        curve: of the target.
        own_s: bookkeeping and sampling.
        step_s: of drafting a level, where a model drafts.
        call_s: of asking all drafters, beside that.
        look_s: of choosing and learning, from one look at the clock to the next.
    """

    curve: Curve
    own_s: float = OWN_S
    step_s: float = STEP_S
    call_s: float = CALL_S
    look_s: float = 0.0


_MEASURED = {
    "ours": {1: 19.3, 4: 21.8, 6: 26.5, 8: 29.4, 16: 56.3},
    "llama": {1: 20.0, 4: 52.3, 6: 81.9, 8: 95.5, 16: 139.4},
    "flat": {1: 20.0, 16: 20.0},
    "cliff": {1: 20.0, 2: 42.0, 16: 56.0},
    "fours": {1: 20.0, 2: 27.0, 4: 27.0, 5: 42.0, 8: 42.0, 9: 57.0, 12: 57.0, 13: 72.0, 16: 72.0},
    # SmolLM2 (Q4_1), the 1.0B shape (Q4_0) and the demo on our engine, two cores each.
    "smollm2-epyc": {1: 2.65, 2: 2.95, 3: 3.15, 4: 3.2, 5: 3.7, 7: 4.3, 16: 7.0},
    "smollm2-zen5": {1: 3.51, 2: 3.84, 4: 4.07, 8: 4.9, 16: 6.78},
    "demo-epyc": {1: 0.15, 2: 0.17, 3: 0.2, 4: 0.21, 5: 0.25, 6: 0.27, 7: 0.32, 8: 0.34, 12: 0.43, 16: 0.62},
    "1b-zen5": {1: 15.9, 2: 16.3, 4: 17.4, 8: 20.5, 16: 30.0},
}
_SMALL = {
    "smollm2": {"own_s": 0.1e-3, "step_s": 0.45e-3, "call_s": 30e-6, "look_s": 16e-6},
    "demo": {"own_s": 0.05e-3, "step_s": 0.19e-3, "call_s": 15e-6, "look_s": 16e-6},
}
"""Of small models, as traces of their rounds on the EPYC had them: there choosing takes a share that shows."""


def _scaled(curve: Curve, factor: float) -> Curve:
    """A curve on which every decode takes ``factor`` times as long."""
    return lambda n_rows: factor * curve(n_rows)


def curve_of(name: str) -> Curve:
    """A named curve, or a line of the given slope."""
    points = _MEASURED.get(name) or {1: 20.0, 16: 20.0 * (1 + 15 * float(name))}
    widths = sorted(points)

    def seconds(n: int) -> float:
        above = next((width for width in widths if width >= n), widths[-1])
        below = max((width for width in widths if width <= n), default=widths[0])
        share = (n - below) / (above - below) if above > below else 0.0
        return (points[below] + share * (points[above] - points[below])) / 1e3

    return seconds


def device_of(name: str) -> Device:
    """The device of a named curve, or of a line."""
    return Device(curve_of(name), **_SMALL.get(name.partition("-")[0], {}))


def with_siblings(chain: Sequence[Any], tree: Sequence[Any]) -> list[list[Any]]:
    """A recorded chain, and the siblings along it that a recorded tree has."""
    path, recorded = Tree(*map(tuple, chain)), Tree(*map(tuple, tree))
    tokens: list[int] = []
    parents: list[int] = []
    values: list[float] = []
    above: int = -1
    met: int | None = -1
    for token, value in zip(path.tokens, path.values, strict=True):
        siblings = recorded.children(met) if met is not None else ()
        others = [(recorded.tokens[n], recorded.values[n]) for n in siblings if recorded.tokens[n] != token]
        met = recorded.child(met, token) if met is not None else None
        most = values[above] if above >= 0 else 1.0
        tokens += [token, *(other for other, _ in others)]
        parents += [above] * (1 + len(others))
        values += [min(value, most), *(min(worth, most) for _, worth in others)]
        above = len(tokens) - len(others) - 1
    return [tokens, parents, values]


def replies_of(folder: Path, temperature: float) -> dict[str, list[Reply]]:
    """The recordings of one temperature; a chain and a tree of one model become one."""
    found = read_recordings(folder, temperature)
    for chain in [name for name in found if name.endswith("-chain")]:
        trees = found.pop(f"{chain.removesuffix('-chain')}-tree", None)
        if trees is not None:
            found[chain.removesuffix("-chain")] = [
                {"truth": reply["truth"], "drafts": list(map(with_siblings, reply["drafts"], tree["drafts"]))}
                for reply, tree in zip(found[chain], trees, strict=True)
            ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--curve", action="append", help="a named curve, or the slope of a line")
    parser.add_argument("--step-ms", type=float, default=0.3, help="of drafting a level, where a model drafts")
    parser.add_argument("--call-ms", type=float, default=0.0, help="of asking the drafters in a round")
    parser.add_argument("--first-factor", type=float, default=1.0, help="how many times too dear decodes seem at first")
    parser.add_argument("--json", action="store_true", help="one object per line")
    options = parser.parse_args()
    slopes = [f"{slope / 100:g}" for slope in range(5, 70, 10)]
    for temperature in (0.8, 0.0):
        replays = {
            name: Replay(name, replies, 0.0 if name == "ngram" else options.step_ms / 1e3)
            for name, replies in replies_of(options.traces, temperature).items()
        }
        models = [name for name in replays if name != "ngram"]
        offers = [[name] for name in replays] + [[name, "ngram"] for name in models if "ngram" in replays]
        for name in options.curve or [*_MEASURED, *slopes]:
            curve = curve_of(name)
            plain = 1 / (curve(1) + OWN_S)
            sizes = {
                f"{drafter} {n}": fixed_speed(replay, n, curve, own_s=OWN_S) / plain
                for drafter, replay in replays.items()
                for n in range(1, 10)
            }
            best = max([("plain", 1.0), *sizes.items()], key=lambda item: item[1])
            found: dict[str, Any] = {"curve": name, "temperature": temperature}
            found |= {"best_fixed": best[0], "best_fixed_speed_up": round(best[1], 3)}
            for drafters in offers:
                chosen = [replays[drafter] for drafter in drafters]
                done = list(
                    replayed_rounds(
                        chosen,
                        curve,
                        own_s=OWN_S,
                        greedy=temperature == 0,
                        first=_scaled(curve, options.first_factor),
                        call_s=options.call_ms / 1e3,
                    )
                )
                found["+".join(drafters)] = tuple(
                    round(sum(n for n, _ in part) / sum(s for _, s in part) / plain, 3)
                    for part in (done, done[WARM_UP:])
                )
            print(
                json.dumps(found) if options.json else "  ".join(f"{key} {value}" for key, value in found.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
