"""What each mechanism of the chooser brings: recorded drafts are replayed with it switched off.

    python benchmarks/ablate_chooser.py [TRACES...] [--curves NAME ...] [--without MECHANISM ...] [--repeat 3] [--json]

TRACES are folders of recordings as ``record_drafts.py`` writes them, by default all of the tests. Time is computed
from cost curves of ``replay_chooser.py`` and two lines, at both temperatures of the recordings, for five first curves:
the right one, one that is twice and one that is half as dear, one of llama.cpp's shape (``other``), and the right one
on a device whose decodes vary by 12 %, one in a hundred of which takes five times as long (the mean of four seeds).
Printed is, for each mechanism, the mean change of the speed over all recordings, curves and temperatures, by first
curve, and the worst cell.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

from replay import Curve, Replay, Reply, replayed_rounds
from replay_chooser import Device, curve_of, device_of, replies_of

from edge_spec.speculation.chooser.candidate import Candidate
from edge_spec.speculation.chooser.claims import Calibration
from edge_spec.speculation.chooser.curve import CostCurve
from edge_spec.speculation.chooser.decider import Decider

_TESTS = Path(__file__).parents[1] / "tests" / "laws" / "traces"
TRACES = (_TESTS, *filter(Path.is_dir, sorted(_TESTS.iterdir())))
CURVES = (
    "ours",
    "llama",
    "flat",
    "cliff",
    "fours",
    "0.25",
    "1.0",
    "smollm2-epyc",
    "smollm2-zen5",
    "demo-epyc",
    "1b-zen5",
)
FIRST = {"right": 1.0, "twice": 2.0, "half": 0.5, "other": 1.0, "noise": 1.0}

Cells = dict[tuple[str, str, float, str], float]


def _rank(self: Candidate, draft: Any, node: int) -> int:
    return 0


ABLATIONS: Mapping[str, tuple[Any, str, Any]] = {
    "trials": (Candidate, "is_due", lambda self, now_s: False),
    "claims": (Calibration, "__call__", lambda self, claim, rank=0: claim),
    "claims by rank or depth": (Candidate, "_rank", _rank),
    "the shape learns": (CostCurve, "learn", lambda self, n_rows, seconds: _factor_only(self, n_rows, seconds)),
    "widths follow others": (CostCurve, "_lead", lambda self, n_rows, steeper: None),
    "tables are left alone": (Decider, "_tables_pay", True),
    "further levels looked at": (Decider, "_is_worth_more", lambda self, *asked: _next_level(self, *asked)),
    "plain decoding measured again": (Decider, "_plain_is_due", False),
    "wide decodes are hoped for": (CostCurve, "_hope", lambda self: None),
    "rests": (Decider, "_rest_after", lambda self, seconds: 0),
    "learning is passed over": (Decider, "_may_pass", lambda self: False),
}
"""Where each mechanism is, and what stands for it when it is off."""

_learn, _is_worth_more = CostCurve.learn, Decider._is_worth_more


def _factor_only(self: CostCurve, n_rows: int, seconds: float) -> None:
    shape = dict(self._shape)
    _learn(self, n_rows, seconds)
    self._shape.update(shape)


def _next_level(self: Decider, model: Candidate, value: float, n: int, depth: int, n_ends: int = 1) -> bool:
    prices, gained = self.prices, value * model.reach[depth] * self.prices.share if depth < self.most else 0.0
    return n < self.most and gained > prices.rate * self._step_s(model) + prices.further(n, 1)


@contextmanager
def without(mechanism: str) -> Iterator[None]:
    where, name, instead = ABLATIONS[mechanism]
    value = instead if callable(instead) else property(lambda self: instead)
    with patch.object(where, name, value):
        yield


def replayed(
    recorded: Mapping[str, Sequence[Reply]], device: Device, temperature: float, *, curve: Curve, first: Curve
) -> float:
    """Tokens per second of recorded drafts on a device.

    Args:
        curve: what decodes take.
        first: what the chooser takes for it at first.
    """
    rounds = list(
        replayed_rounds(
            [
                Replay(drafter, replies, 0.0 if drafter == "ngram" else device.step_s)
                for drafter, replies in recorded.items()
            ],
            curve,
            own_s=device.own_s,
            greedy=temperature == 0,
            first=first,
            call_s=device.call_s,
            look_s=device.look_s,
        )
    )
    return sum(n for n, _ in rounds) / sum(s for _, s in rounds)


def speeds(traces: Path, curves: Sequence[str], repeat: int) -> Cells:
    """Tokens per second of every cell."""
    found: Cells = {}
    for temperature in (0.0, 0.8):
        recorded = {name: list(replies) * repeat for name, replies in replies_of(traces, temperature).items()}
        for name in curves:
            device = device_of(name)
            true = device.curve
            for first, factor in FIRST.items():
                begun = _as_steep(curve_of("llama"), true) if first == "other" else true
                found[first, name, temperature, traces.name] = mean(
                    replayed(
                        recorded,
                        device,
                        temperature,
                        curve=noisy(true, seed) if first == "noise" else true,
                        first=lambda n, begun=begun, factor=factor: factor * begun(n),  # type: ignore[misc]
                    )
                    for seed in range(4 if first == "noise" else 1)
                )
    return found


def _as_steep(shape: Curve, curve: Curve) -> Curve:
    """A curve of another shape that begins where this one does."""
    return lambda n: curve(1) / shape(1) * shape(n)


def noisy(curve: Callable[[int], float], seed: int) -> Callable[[int], float]:
    chance = random.Random(seed)
    return lambda n: curve(n) * chance.lognormvariate(0, 0.12) * (5 if chance.random() < 0.01 else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="*", default=TRACES)
    parser.add_argument("--curves", nargs="+", default=CURVES, help="names of replay_chooser.py, or slopes of lines")
    parser.add_argument("--without", nargs="+", default=list(ABLATIONS), choices=ABLATIONS, help="what to switch off")
    parser.add_argument("--repeat", type=int, default=3, help="how often the replies are written")
    parser.add_argument("--json", action="store_true", help="one object per line")
    options = parser.parse_args()

    def of_all() -> Cells:
        return {
            cell: speed
            for each in options.traces
            for cell, speed in speeds(each, options.curves, options.repeat).items()
        }

    whole = of_all()
    for mechanism in options.without:
        with without(mechanism):
            part = of_all()
        change = {cell: part[cell] / whole[cell] - 1 for cell in whole}
        means = {first: mean(change[cell] for cell in change if cell[0] == first) for first in FIRST}
        worst = min(change, key=change.__getitem__)
        if options.json:
            print(json.dumps({"without": mechanism, "mean": means, "worst": [*worst, change[worst]]}), flush=True)
            continue
        said = "  ".join(f"{first} {mean:+.1%}" for first, mean in means.items())
        print(f"{mechanism:32} {said}  worst {change[worst]:+.1%} ({', '.join(map(str, worst))})", flush=True)


if __name__ == "__main__":
    main()
