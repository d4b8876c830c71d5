"""Milliseconds of one decode by number of rows, of contestants in processes of their own that take turns.

    python benchmarks/engine_widths.py [model.gguf] [--threads 2] [--cells 100] [--rounds 20] [CONTESTANT ...]
    python benchmarks/engine_widths.py lfm2-8b-a1b,llama-1.1b --shapes FOLDER --threads 2 --widths 1,2,4,8,16

With ``--shapes`` models are named by their shapes (``shape_files.py``), one measured after the other in one sitting:
they are written into FOLDER with random weights of ``--kind``, and transcribed there, where they are not there yet, so
a quiet moment is not spent on that; ``--prepare`` does no more. Q4_0 takes 9 GB with its transcription for 8 billion
weights.

A contestant is ``llama`` or ``rows`` (ONNX Runtime with edge-spec's kernels), and optionally a build, or
instructions that are left out, and settings:

    llama@FOLDER            the libllama.so in FOLDER instead of the installed one, compiled for other instructions
    rows@avx512+avx-vnni    our kernels without these instructions, see docs/devices.md
    rows:kv_k=f32,kv_v=f32  settings of the engine; ``llama:kv_k=f16,exact=false`` is llama.cpp with its defaults

Leave ``OMP_WAIT_POLICY`` unset: ``passive`` costs llama.cpp a third of its speed at one row, and our kernels nothing.
All processes stay loaded, and one computes at a time. Rounds alternate between them and between widths, so that noise
affects all alike. Printed are medians and minima in milliseconds, with all rows output, and the medians relative to one
row, and to as many, of the first contestant of llama.cpp. ONNX Runtime's own operators, about a hundredth of the time,
always use the best instructions.

``--aim 1=0.75,4=0.85`` tells for every contestant whether the median decode of 1 row takes at most 0.75 of one row of
that first contestant, and so on; with ``--strict`` the exit status is 1 if the last contestant misses an aim.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Self

import numpy as np
from shape_files import shape_file

from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.onnx.opener import open_onnx
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.settings import ModelSettings
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import ModelFile, inspect, resolve
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree

PAUSE_S = 0.02
"""Between two processes, so that threads which spin after their work do not spin while the other computes."""

MOST_READINGS = 3
"""Prompts are read in so many rounds at most: that takes longest, and differs least."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """An engine, a build or variant of it, and settings."""

    text: str
    engine: str
    build: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, text: str) -> Self:
        """A contestant as written on the command line."""
        head, _, tail = text.partition(":")
        engine, _, build = head.partition("@")
        if engine not in ("llama", "rows"):
            raise SystemExit(f"there is no contestant {engine!r}: choose llama or rows")
        pairs = (pair.partition("=") for pair in tail.split(",") if pair)
        return cls(text=text, engine=engine, build=build, settings={key: _value(value) for key, _, value in pairs})

    def open(self, file: ModelFile, n_ctx: int, n_threads: int, cache: Path) -> tuple[TextPath, str]:
        """The model, and a description of it."""
        if self.engine == "llama":
            from edge_spec.llama_cpp.library import library

            settings = LlamaSettings(n_ctx=n_ctx, n_threads=n_threads, **self.settings)
            pool, _ = open_llama(LlamaWeights(file.path), settings, file=file.fingerprint, cache_dir=cache)
            return pool.path(), library().features.partition("REPACK")[0].strip()
        source = transcribe(file, cache)
        onnx = ModelSettings(n_ctx=n_ctx, n_threads=n_threads, **self.settings)
        return open_onnx(source, onnx, file=file.fingerprint, cache_dir=cache)[0].path(), "our kernels"

    def environment(self) -> dict[str, str]:
        """The environment of its process."""
        if not self.build:
            return dict(os.environ)
        if self.engine == "rows":
            return os.environ | {"EDGE_SPEC_WITHOUT": self.build.replace("+", ",")}
        return os.environ | {"LLAMA_CPP_LIB_PATH": str(Path(self.build).resolve())}


def _value(text: str) -> str | int | bool:
    return {"true": True, "false": False}.get(text, int(text) if text.isdecimal() else text)


class Process:
    """A contestant that waits for the orders ``decode N`` and ``prefill N`` and answers with seconds."""

    def __init__(self, contestant: Contestant, options: argparse.Namespace, cache: Path) -> None:
        command = [sys.executable, __file__, str(options.model), contestant.text, "--worker", "--cache", str(cache)]
        command += [f"--{name}={getattr(options, name)}" for name in ("threads", "cells", "prefill")]
        self.contestant = contestant
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=contestant.environment()
        )
        self.what = self._answer()

    def order(self, what: str, n: int) -> float:
        """Seconds that an order took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {n}\n")
        self._process.stdin.flush()
        seconds = float(self._answer())
        sleep(PAUSE_S)
        return seconds

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.contestant.text} has ended; its error is printed above")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def work(contestant: Contestant, options: argparse.Namespace) -> None:
    """Take orders as a contestant."""
    file = inspect(resolve(options.model))
    n_ctx = max(options.cells, options.prefill) + 64
    model, what = contestant.open(file, n_ctx, options.threads, options.cache)
    print(
        json.dumps(f"{what}; {model.capabilities.identity}, widths from {min(model.capabilities.widths, default=0)}"),
        flush=True,
    )
    tokens = np.random.default_rng(0).integers(0, file.n_vocab, n_ctx).tolist()
    for line in sys.stdin:
        order, n = line.split()[0], int(line.split()[1])
        if order == "prefill":
            model.rollback(0)
            start = perf_counter()
            model.prefill(tokens[:n])
            taken = perf_counter() - start
        else:
            if model.n_past != options.cells:
                model.rollback(0)
                model.prefill(tokens[: options.cells])
                model.hold()
            draft = Tree.sequence(tokens[options.cells : options.cells + n])
            model.decode(draft)  # warms the caches, which another process used meanwhile
            model.rollback(options.cells)
            start = perf_counter()
            model.decode(draft)
            taken = perf_counter() - start
            model.rollback(options.cells)
        print(json.dumps(taken), flush=True)
    model.close()


def measure(processes: list[Process], options: argparse.Namespace) -> dict[tuple[str, str, int], list[float]]:
    """Seconds by contestant, order and number of tokens."""
    seconds: dict[tuple[str, str, int], list[float]] = {}
    orders = [("decode", n) for n in options.widths] + [("prefill", options.prefill)]
    for turn in range(options.rounds + 1):
        for what, n in orders:
            if what == "prefill" and turn > MOST_READINGS:
                continue
            for process in processes if turn % 2 else reversed(processes):
                taken = process.order(what, n)
                if turn:
                    seconds.setdefault((process.contestant.text, what, n), []).append(taken)
    return seconds


def aims_of(text: str) -> dict[int, float]:
    """Return how long a decode may take, relative to one row of the base, by number of rows."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {int(width): float(limit) for width, _, limit in pairs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("contestants", nargs="*", default=["llama", "rows"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cells", type=int, default=100, help="tokens in the cache")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--widths", default="1,2,3,4,5,6,7,8,12,16")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--cache", type=Path, help="folder for transcriptions")
    parser.add_argument("--shapes", type=Path, metavar="FOLDER", help="models are shapes, kept in this folder")
    parser.add_argument("--kind", default="Q4_0", help="of the matrices of shapes")
    parser.add_argument("--prepare", action="store_true", help="only write and transcribe the shapes")
    parser.add_argument("--aim", type=aims_of, default={}, metavar="N=SHARE,...", help="report whether these are met")
    parser.add_argument("--strict", action="store_true", help="fail if the last contestant misses an aim")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    contestants = [Contestant.of(text) for text in options.contestants]
    if options.worker:
        work(contestants[0], options)
        return 0
    options.widths = [int(text) for text in options.widths.split(",")]
    if not options.aim.keys() <= set(options.widths):
        parser.error("--aim is about widths that are not measured")
    with tempfile.TemporaryDirectory() as scratch:
        models = [options.model]
        if options.shapes is not None:
            options.cache = options.cache or options.shapes / "cache" / "onnx"
            models = [shape_file(options.shapes, name, options.kind) for name in options.model.split(",")]
        for model in models if options.shapes is not None else ():
            transcribe(inspect(model), options.cache)
        n_missed = 0
        for model in models if not options.prepare else ():
            options.model = model
            n_missed += compared(contestants, options, options.cache or Path(scratch))
    return 1 if options.strict and n_missed else 0


def compared(contestants: list[Contestant], options: argparse.Namespace, cache: Path) -> int:
    """Measure one model; returns how many aims the last contestant misses."""
    processes = [Process(contestant, options, cache) for contestant in contestants]
    try:
        return report(processes, measure(processes, options), options)
    finally:
        for process in processes:
            process.close()


def report(
    processes: list[Process], seconds: dict[tuple[str, str, int], list[float]], options: argparse.Namespace
) -> int:
    """Print the tables and whether aims are met; returns how many aims the last contestant misses."""
    n_missed = 0
    print(f"{options.model}, {options.threads} threads, {options.cells} cells, {options.rounds} rounds")
    medians = {key: statistics.median(taken) for key, taken in seconds.items()}
    one = "decode", options.widths[0]
    base = next((p.contestant.text for p in processes if p.contestant.engine == "llama"), processes[0].contestant.text)
    for process in processes:
        name = process.contestant.text
        print(f"{name} ({process.what})")
        best = {key: min(taken) for key, taken in seconds.items()}
        for title, of, unit in (
            ("median ms", medians, dict.fromkeys(options.widths, 1e-3)),
            ("best ms", best, dict.fromkeys(options.widths, 1e-3)),
            (f"of {base}'s first", medians, dict.fromkeys(options.widths, medians[base, *one])),
            (f"of {base}'s as many", medians, {n: medians[base, "decode", n] for n in options.widths}),
        ):
            row = "  ".join(f"{n}: {of[name, 'decode', n] / unit[n]:.2f}" for n in options.widths)
            print(f"  {title:>9}  {row}")
        prefill = medians[name, "prefill", options.prefill]
        print(
            f"  prefill of {options.prefill} in {prefill * 1e3:.0f} ms, "
            f"{medians[base, 'prefill', options.prefill] / prefill:.2f} times as fast as {base}"
        )
        shares = {n: medians[name, "decode", n] / medians[base, *one] for n in options.aim}
        n_missed = sum(shares[n] > limit for n, limit in options.aim.items())
        for n, limit in options.aim.items():
            verdict = "met" if shares[n] <= limit else "MISSED"
            print(f"  aim at {n}: {shares[n]:.2f}, at most {limit:.2f}: {verdict}")
    return n_missed


if __name__ == "__main__":
    sys.exit(main())
