"""Speed under smaller and smaller memory budgets.

    python benchmarks/budget_sweep.py --models FOLDER --json docs/budget-sweep.json --plot docs/budget-sweep.svg

The target is the demo target in the shape of a model of 1.0 billion parameters, which computes the same function; a
smaller model of the family drafts for it. For each engine every budget is planned, from more than enough down to the
smallest. The largest of these plans is run, and of each kind (mode and type of cache) the smallest, in processes of
their own. Measured are tokens per second, the median over interleaved rounds, and memory, the highest resident size
without the target's weights. The reference is llama.cpp with its defaults: full context for the drafter, 16-bit caches,
buffers for the logits of 512 rows (``naive_speculation.py``).

The question, after SpecMemo (arXiv 2506.01986): with how much less memory is 96 % of the speed kept?

Results are added to the JSON file step by step, and those in it are not run again: memory can be measured on a busy
machine with ``--rounds 0``, and speed later on a quiet one. It takes some 12 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from enlarged_model import write_enlarged

MIB = 1 << 20
_SESSION = Path(__file__).with_name("budget_session.py")
_ROOT = Path(__file__).parents[1]
_PROMPTS = (
    "Tell me a short story about a dog who is afraid of the rain.",
    "Hello! How are you today?",
    "What is your favourite kind of music, and why?",
    "Can you book a table for four people in an Italian restaurant on Friday?",
)
_SHARE = 0.96
_DRAFTS = {"drafter": "drafter-q4_0.gguf", "intermediate": "intermediate-q4_0.gguf"}


def ask(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a step finds, in a process of its own."""
    # Threads that sleep between products would slow down llama.cpp only.
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, str(_SESSION), json.dumps(step)], capture_output=True, env=environment, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{step}: {done.returncode} {done.stderr.decode('utf-8', 'replace')[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def chosen_points(plans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The largest plan, and the smallest of each kind."""
    smallest = {plan["kind"]: plan for plan in plans}
    return [plans[0], *(plan for plan in smallest.values() if plan is not plans[0])]


def whole(point: Mapping[str, Any]) -> bool:
    """Return whether the plan ran as planned: nothing was reduced or dropped meanwhile for lack of memory."""
    return not point.get("degradations")


def keeps(points: Sequence[Mapping[str, Any]], naive: Mapping[str, Any]) -> dict[str, Any] | None:
    """The point with the least memory that is fast enough, and how much less than the naive setup it takes."""
    measured = [point for point in points if "tokens_per_s" in point and "memory_bytes" in point and whole(point)]
    if not measured or "memory_bytes" not in naive:
        return None
    unlimited = measured[0]["tokens_per_s"]
    enough = [point for point in measured if point["tokens_per_s"] >= _SHARE * unlimited]
    best = min(enough, key=lambda point: point["memory_bytes"])
    return {
        "what": best["what"],
        "memory_bytes": best["memory_bytes"],
        "tokens_per_s": best["tokens_per_s"],
        "share_of_speed": best["tokens_per_s"] / unlimited,
        "less_than_unlimited": 1 - best["memory_bytes"] / measured[0]["memory_bytes"],
        "less_than_naive_touches": 1 - best["memory_bytes"] / naive["memory_bytes"],
        "less_than_naive_reserves": 1 - best["memory_bytes"] / naive["reserved_bytes"],
    }


class Sweep:
    """The results so far, and the next steps."""

    def __init__(self, values: argparse.Namespace) -> None:
        self._path: Path | None = values.json
        self._fill: int = values.fill
        self._tokens: int = values.tokens
        self._prompts = list(_PROMPTS[: values.prompts])
        self._all: bool = values.all
        folder: Path = values.models
        folder.mkdir(parents=True, exist_ok=True)
        self._cache = folder / "cache"
        demo = _ROOT / "models" / "demo"
        self._draft = demo / _DRAFTS[values.draft]
        self._target = folder / "demo-1b-q4_0.gguf"
        if not self._target.exists():
            write_enlarged(self._target.with_suffix(".part"), demo / "target-q4_0.gguf")
            self._target.with_suffix(".part").rename(self._target)
        self._common = {
            "model": str(self._target),
            "draft": str(self._draft),
            "n_ctx": values.ctx,
            "n_threads": values.threads,
            "cache_dir": str(self._cache),
        }
        self.found: dict[str, Any] = {"n_ctx": values.ctx, "engines": {}, "naive": {}, "keeps": {}}
        if self._path and self._path.exists():
            self.found = json.loads(self._path.read_text("utf-8"))
            if self.found["n_ctx"] != values.ctx:
                raise SystemExit(f"{self._path} has results for a context of {self.found['n_ctx']} tokens")

    def plan(self, engine: str) -> None:
        """Choose the points of an engine."""
        if engine in self.found["engines"]:
            return
        if engine == "onnx":
            from edge_spec.engines.onnx.transcription.cache import transcribe
            from edge_spec.models import inspect

            for path in (self._target, self._draft):
                transcribe(inspect(path), self._cache / "onnx")
        answer = ask({"step": "plans", "load": {**self._common, "engine": engine}})
        points = answer["plans"] if self._all else chosen_points(answer["plans"])
        self.found["engines"][engine] = [{**point, "held_bytes": answer["held_bytes"]} for point in points]
        self._save()

    def measure_memory(self) -> None:
        """Measure every point that lacks it, and the naive setup."""
        for engine, point in self._points():
            if "memory_bytes" not in point:
                done = self._run(engine, point, prompts=self._prompts[:1], fill=self._fill)
                point["memory_bytes"] = done["peak_bytes"] - point["weight_bytes"]
                point["predicted_bytes"] += done["more_bytes"]
                for name in ("mode", "notes", "read_tokens_per_s"):
                    point[name] = done[name]
                self._note_degradations(point, done)
                self._save()
                print(shown(engine, point), flush=True)
        naive = self.found["naive"]
        if "memory_bytes" not in naive and self.found["engines"]:
            done = self._run_naive(prompts=self._prompts[:1], fill=self._fill)
            weights = next(iter(self.found["engines"].values()))[0]["weight_bytes"]
            naive["memory_bytes"] = done["peak_bytes"] - weights
            naive["reserved_bytes"] = done["reserved_bytes"] - weights
            self._note_same(done)
            self._save()
            print(
                f"naive: {naive['memory_bytes'] / MIB:.1f} MiB touched, {naive['reserved_bytes'] / MIB:.1f} reserved",
                flush=True,
            )

    def measure_speed(self) -> None:
        """Run one round: every point once."""
        for engine, point in self._points():
            done = self._run(engine, point, prompts=self._prompts, fill=0)
            self._note_degradations(point, done)
            self._note_speed(point, done["tokens_per_s"])
            point["tokens_per_round"] = done["tokens_per_round"]
            print(shown(engine, point), flush=True)
        naive = self.found["naive"]
        done = self._run_naive(prompts=self._prompts, fill=0)
        self._note_same(done)
        self._note_speed(naive, done["tokens_per_s"])
        print(
            f"naive: {naive['rates'][-1]:.1f} tokens/s, {done['same_texts']} of {done['texts']} texts equal its plain"
            " decoding",
            flush=True,
        )

    def conclude(self) -> None:
        """Add the conclusion about each engine."""
        for engine, points in self.found["engines"].items():
            kept = keeps(points, self.found["naive"])
            if kept:
                self.found["keeps"][engine] = kept
                print(
                    f"{engine}: {kept['share_of_speed']:.1%} of the unlimited speed at {kept['memory_bytes'] / MIB:.1f}"
                    f" MiB ({kept['what']}): {kept['less_than_unlimited']:.1%} less than unlimited,"
                    f" {kept['less_than_naive_touches']:.1%} less than naive touches,"
                    f" {kept['less_than_naive_reserves']:.1%} less than it reserves"
                )
        self._save()

    def report(self) -> int:
        """Print which plans did not run as planned; returns the exit status."""
        broken = [(engine, point) for engine, point in self._points() if not whole(point)]
        for engine, point in broken:
            print(f"{engine} {point['what']}: {'; '.join(point['degradations'])}")
        other = self.found["naive"].get("other_texts", 0)
        if other:
            print(f"naive: {other} texts differ from its own plain decoding, so it is not lossless")
        print(f"{len(broken)} of {len(self._points())} plans gave something up for lack of memory, and do not count")
        return 1 if broken else 0

    def _points(self) -> list[tuple[str, dict[str, Any]]]:
        return [(engine, point) for engine, points in self.found["engines"].items() for point in points]

    def _run(self, engine: str, point: dict[str, Any], **work: Any) -> dict[str, Any]:
        sizes = {name: point[name] for name in ("what", "needed_bytes", "held_bytes")}
        return ask({"step": "run", "load": {**self._common, "engine": engine}, "tokens": self._tokens, **sizes, **work})

    def _run_naive(self, **work: Any) -> dict[str, Any]:
        return ask({"step": "naive", "load": self._common, "tokens": self._tokens, **work})

    @staticmethod
    def _note_degradations(point: dict[str, Any], done: Mapping[str, Any]) -> None:
        point["degradations"] = list(dict.fromkeys([*point.get("degradations", ()), *done["degradations"]]))

    def _note_same(self, done: Mapping[str, Any]) -> None:
        """Note how many texts of the reference differ from what it writes without drafts."""
        naive = self.found["naive"]
        naive["other_texts"] = max(naive.get("other_texts", 0), done["texts"] - done["same_texts"])

    def _note_speed(self, point: dict[str, Any], rate: float) -> None:
        point.setdefault("rates", []).append(rate)
        point["tokens_per_s"] = median(point["rates"])
        self._save()

    def _save(self) -> None:
        if self._path:
            self._path.write_text(json.dumps(self.found, indent=1) + "\n", "utf-8")


def shown(engine: str, point: Mapping[str, Any]) -> str:
    """One line of the table."""
    memory, rates, read = point.get("memory_bytes"), point.get("rates", []), point.get("read_tokens_per_s", 0)
    return (
        f"{engine:<6} {point['what']:<90} predicted {point['predicted_bytes'] / MIB:6.1f} measured"
        f" {'-' if memory is None else format(memory / MIB, '6.1f')} MiB, reads {read:.0f} tokens/s, writes"
        f" {' '.join(format(rate, '.1f') for rate in rates)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", type=Path, default=Path("benchmark-models"), help="folder for some 1.1 GB of models"
    )
    parser.add_argument("--engines", default="llama,onnx")
    parser.add_argument("--draft", choices=sorted(_DRAFTS), default="intermediate")
    parser.add_argument("--ctx", type=int, default=4096, help="context, the same for every budget")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--all", action="store_true", help="run every plan, not just the largest and the smallest of each kind"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of speed; 0 for memory alone")
    parser.add_argument("--prompts", type=int, default=len(_PROMPTS), help="prompts per round")
    parser.add_argument("--tokens", type=int, default=64, help="tokens written per prompt")
    parser.add_argument("--fill", type=int, default=1024, metavar="N", help="tokens read when memory is measured")
    parser.add_argument("--json", type=Path, help="file of results; those in it are kept")
    parser.add_argument("--plot", type=Path, help="SVG; needs matplotlib")
    values = parser.parse_args(arguments)
    sweep = Sweep(values)
    for engine in values.engines.split(","):
        sweep.plan(engine)
    sweep.measure_memory()
    for _ in range(values.rounds):
        sweep.measure_speed()
    sweep.conclude()
    if values.plot:
        from plots import plot_sweep

        plot_sweep(values.plot, sweep.found)
    return sweep.report()


if __name__ == "__main__":
    sys.exit(main())
