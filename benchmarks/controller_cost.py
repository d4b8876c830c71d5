"""What choosing costs: microseconds per round that `auto` spends on anything but decoding and drafting.

    python benchmarks/controller_cost.py [--enlarged BIG.gguf] [--engine onnx] [--tokens 256]

Time is counted where it is spent: in the chooser (choosing, valuing, learning), in
the drafters, or in the rest of the round. Drafters that choose themselves, such as the leaf of a hierarchy, count as
choosing. Printed are the chooser's microseconds per round, and what share of a plain round of the target that is.
BIG.gguf is the demo target in the shape of 1.0B (``enlarged_model.write_enlarged``).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import edge_spec
from edge_spec.models import resolve_family
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.chooser.decider import Decider
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter

PROMPTS = ("Tell me a story about a dog.", "A girl finds a boat.", "Why was the bear sad?", "Tell me about the sea.")
CHOOSING = ("draft_all", "learn_all", "_is_worth_more")
DRAFTING = ("draft", "draft_all_while", "read", "n_unread")


class Clock:
    """Seconds by what they were spent on: those of a call without the calls inside it that are counted elsewhere."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._on: list[str] = []
        self._since = perf_counter()

    def _switch(self) -> None:
        now = perf_counter()
        if self._on:
            self.seconds[self._on[-1]] += now - self._since
        self._since = now

    def counted(self, call: Callable[..., Any], what: str) -> Callable[..., Any]:
        """The same call, with its time counted as ``what``."""

        @wraps(call)
        def timed(*values: Any, **named: Any) -> Any:
            self._switch()
            self._on.append(what)
            try:
                return call(*values, **named)
            finally:
                self._switch()
                self._on.pop()

        return timed


def measure(clock: Clock, model: Path, n_tokens: int, **load: Any) -> str:
    """A line about one model."""
    choosing: list[float] = []
    with edge_spec.load(str(model), speculation="auto", **load) as opened:
        plain: float | None = None
        for number, prompt in enumerate((PROMPTS[0], *PROMPTS)):
            reply = opened.generate(prompt, seed=number, max_tokens=n_tokens, ignore_eos=True)
            next(reply)  # reads the prompt
            before = clock.seconds["choosing"]
            first = reply.statistics.rounds
            reply.read()
            if number:
                rounds = reply.statistics.rounds - first
                choosing.append((clock.seconds["choosing"] - before) / rounds * 1e6)
            plain = opened.choices["off"].round_s
    assert plain, "plain decoding was not measured"
    each = median(choosing)
    return f"{each:8.1f} us per round, {each / plain / 1e4:5.2f} % of a plain round of {plain * 1e3:.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--enlarged", type=Path, help="the demo target in the shape of 1.0B")
    parser.add_argument("--engine", action="append", help="onnx, llama; both by default")
    parser.add_argument("--tokens", type=int, default=256, help="of each reply; a quarter for the enlarged model")
    options = parser.parse_args()
    clock = Clock()
    for kind in (Chooser, Decider):
        for name in set(CHOOSING) & set(vars(kind)):
            setattr(kind, name, clock.counted(getattr(kind, name), "choosing"))
    for drafter in (HierarchyDrafter, ModelDrafter, NgramDrafter):
        for name in set(DRAFTING) & set(vars(drafter)):
            setattr(drafter, name, clock.counted(getattr(drafter, name), "drafting"))
    demo = resolve_family("demo")
    small = {"draft": str(demo.draft), "intermediate": str(demo.intermediate)}
    models = [("demo", demo.target, options.tokens)]
    if options.enlarged is not None:
        models.append(("demo as 1.0B", options.enlarged, options.tokens // 4))
    for engine in options.engine or ("onnx", "llama"):
        for name, path, n_tokens in models:
            print(f"{name:>13}, {engine:>5}: {measure(clock, path, n_tokens, engine=engine, n_ctx=1024, **small)}")


if __name__ == "__main__":
    main()
