"""Milliseconds of a token where one, two and three programs write at once, each with a model and threads of its own.

    python benchmarks/several_programs.py [MODEL] [--threads 2] [--programs 1,2,3] [--seconds 4] [--rounds 3]
    python benchmarks/several_programs.py [MODEL] --engines llama --set GOMP_SPINCOUNT=20000 --set KMP_BLOCKTIME=200
    python benchmarks/several_programs.py smollm2 --engines llama --programs 1 --rounds 15 --set GOMP_SPINCOUNT=300000

All programs load first, wait for one another, and write plainly for so many seconds. Printed for each engine and number
of programs are the median of all programs and rounds, the slowest program, and how many times its fair share the median
is: what a program alone takes, times the programs for which there are not enough cores. With ``--set`` the same is
measured once more for each of these settings of the environment; the numbers of programs and the settings take turns
in every round. Behind it stands how many times as long a token takes with the setting, the median of the rounds and its
95 % interval: the last command (GNU's default) shows what edge-spec's own setting costs a program alone, nothing if
the interval includes 1. With ``--max 2.5`` the exit status is 1 if a median takes more than so many fair shares.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import edge_spec
from edge_spec.evaluation.intervals import interval_of_median
from edge_spec.memory.device import cores

_ENGINES = ("onnx", "llama")
_TOKENS = 64


def write(asked: argparse.Namespace) -> None:
    """Load, wait for a line, write, and print the milliseconds of a token."""
    with edge_spec.load(
        asked.model, engine=asked.engines, speculation="off", n_ctx=512, n_threads=asked.threads, cache_dir=asked.cache
    ) as model:
        model.generate("Tell me a story.", max_tokens=8).read()
        print("loaded", flush=True)
        sys.stdin.readline()
        begun, spent, n_tokens = perf_counter(), 0.0, 0
        while perf_counter() - begun < asked.seconds:
            reply = model.generate("Tell me a story.", seed=n_tokens, max_tokens=_TOKENS, ignore_eos=True)
            reply.read()
            spent += reply.statistics.decode_s
            n_tokens += len(reply.token_ids)
    print(json.dumps(1e3 * spent / n_tokens))


def together(command: list[str], n_programs: int, setting: str) -> list[float]:
    """Return the milliseconds of a token of each of so many programs."""
    name, _, value = setting.partition("=")
    environment = {**os.environ, **({name: value} if name else {})}
    programs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(n_programs)
    ]
    try:
        for each in programs:
            assert each.stdout is not None
            if not each.stdout.readline():
                raise SystemExit(f"a program ended with exit code {each.wait()}")
        for each in programs:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        return [float(json.loads(each.communicate()[0])) for each in programs]
    finally:
        for each in programs:
            each.kill()


def times_as_long(spent: list[float], without: list[float], n: int) -> str:
    """Return how many times as long a token takes as without a setting, by rounds of so many programs."""
    rounds = [[median(each[at : at + n]) for at in range(0, len(each), n)] for each in (spent, without)]
    ratios = [[taken / usual] for taken, usual in zip(*rounds, strict=True)]
    low, high = interval_of_median(ratios)
    return f"  {median(ratio for (ratio,) in ratios):.3f} times ({low:.3f} to {high:.3f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--engines", default=",".join(_ENGINES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--programs", default="1,2,3")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--max", type=float, metavar="SHARES")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        write(asked)
        return 0
    numbers, worst = [int(n) for n in asked.programs.split(",")], 0.0
    with tempfile.TemporaryDirectory() as scratch:
        common = [sys.executable, __file__, asked.model, "--worker", "--cache", str(asked.cache or scratch)]
        common += [f"--threads={asked.threads}", f"--seconds={asked.seconds}"]
        print(f"{'engine':6} {'setting':28} {'programs':>8} {'ms/token':>9} {'slowest':>9} {'fair shares':>11}")
        for engine in asked.engines.split(","):
            command = [*common, f"--engines={engine}"]
            # The first one transcribes and probes.
            together([*command, "--seconds=0.1"], 1, "")
            found: dict[tuple[str, int], list[float]] = {}
            for _ in range(asked.rounds):
                for setting in ("", *asked.set):
                    for n in numbers:
                        found.setdefault((setting, n), []).extend(together(command, n, setting))
            for (setting, n), spent in sorted(found.items()):
                share = max(1.0, n * asked.threads / cores()[1]) * median(found[setting, min(numbers)])
                worst = max(worst, median(spent) / share)
                values = f"{median(spent):9.2f} {max(spent):9.2f} {median(spent) / share:11.2f}"
                times = times_as_long(found[setting, n], found["", n], n) if setting else ""
                print(f"{engine:6} {setting:28} {n:8} {values}{times}", flush=True)
    return int(asked.max is not None and worst > asked.max)


if __name__ == "__main__":
    sys.exit(main())
