"""Measure what this processor reaches with rows, prompts, drafts and several answers; print tables in Markdown.

    python benchmarks/processor_report.py [--model smollm2] [--shape llama-1.1b --shapes FOLDER] [--without LIST ...]

Each ``--without`` adds the figures of the same computer without some instructions (``EDGE_SPEC_WITHOUT``, see
docs/devices.md), such as ``--without avx512,avx-vnni`` for a processor with AVX2 alone: its products are those of such
a processor, its memory, caches and clock are not. Sets of instructions are measured one after the other, each in a
process of its own with a cache of its own, in which the costs of decodes are measured afresh.

- **Rows**: milliseconds of a decode of 1 to 16 rows at 100 tokens, and of reading a prompt of 256 tokens; medians.
- **Share of the limit**: at one row of the bytes per second that as many threads read from memory, counting all
  matrices once; at 16 rows and for the prompt of the products per second of the best instruction (``peaks.py``), where
  that is known. A model that fits a cache can exceed the first.
- **Limits**: those bytes and those products per second, above the tables.
- **Drafts**: speed-up of ``auto`` over plain decoding of the package's prompts, as ``edge-spec bench`` measures it:
  greedily without penalties, and with the model's recommended sampler.
- **Answers at once**: tokens per second of 4 and 8 answers together over one by one, plain decoding at 0.8.

The computer has to be quiet. With ``smollm2`` one set of instructions takes about two minutes; the shape has random
weights, so only its rows are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from peaks import Peaks
from several_texts import one_by_one, together
from shape_files import shape_file

import edge_spec
from edge_spec.cli.prompts import read_prompts
from edge_spec.engines.base import installed
from edge_spec.engines.onnx.kernels import features
from edge_spec.evaluation.bench import bench
from edge_spec.memory import describe, format_size, probe
from edge_spec.memory.device import cores
from edge_spec.models import ModelFile, inspect, resolve
from edge_spec.speculation.tree import Tree

ROWS, PROMPT, CELLS, ANSWERS = (1, 2, 4, 8, 16), 256, 100, (4, 8)
GREEDY: dict[str, Any] = {"temperature": 0.0, "dry_multiplier": 0.0}


def matrices_of(file: ModelFile) -> tuple[int, int]:
    """Return the bytes and the number of weights that a decode of one row reads."""
    names = {tensor.name for tensor in file.tensors}
    # Where the output has no matrix of its own, the embeddings are multiplied; otherwise a row of them is looked up.
    looked_up = {"token_embd.weight"} if "output.weight" in names else set()
    read = [each for each in file.tensors if len(each.shape) > 1 and each.name not in looked_up]
    return sum(each.n_bytes for each in read), sum(int(np.prod(each.shape)) for each in read)


def rows_of(model: edge_spec.TextModel, rounds: int) -> dict[str, float]:
    """Return seconds of decodes by number of rows, and of reading a prompt, in turns."""
    tokens = np.random.default_rng(0).integers(100, 1000, PROMPT + CELLS + 16).tolist()
    path = model.followed["target"].model.pool.path()
    taken: dict[str, list[float]] = {}

    def timed(name: str, work: Any) -> None:
        begun = perf_counter()
        work()
        taken.setdefault(name, []).append(perf_counter() - begun)

    with model.worker.pause():
        for turn in range(rounds + 1):
            path.rollback(0)
            if turn <= rounds // 4:
                timed("prompt", lambda: path.prefill(tokens[:PROMPT]))
                path.rollback(0)
            path.prefill(tokens[:CELLS])
            for n in ROWS:
                tree = Tree.sequence(tokens[CELLS : CELLS + n])
                timed(str(n), lambda tree=tree: len(path.decode(tree)))
                path.rollback(CELLS)
        path.close()
    # The first one warms up.
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def answers_at_once(model: edge_spec.TextModel, n: int, rounds: int) -> float:
    """Return how many times as fast ``n`` answers are written together as one by one; the median of the rounds."""
    asked: dict[str, Any] = {"max_tokens": 64, "seed": 1, "temperature": 0.8, "ignore_eos": True}
    ratios = [one_by_one(model, n, asked).seconds / together(model, n, asked).seconds for _ in range(rounds + 1)]
    return statistics.median(ratios[1:])


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return what one set of instructions reaches: the work of a child process."""
    variant = features()[0]
    with tempfile.TemporaryDirectory() as folder:
        peaks = Peaks(options.threads, Path(folder))
    found: dict[str, Any] = {
        "variant": variant,
        "bytes_per_s": peaks.bytes_per_s(),
        "products_per_s": peaks.products_per_s(variant),
    }
    asked = {"engine": "onnx", "n_threads": options.threads, "cache_dir": options.cache, "n_ctx": 1024}
    models = [options.model] if options.shape is None else [options.model, options.shape_path]
    found["rows"] = {}
    for name in models:
        n_bytes, n_weights = matrices_of(inspect(resolve(name)))
        with edge_spec.load(name, speculation="off", **asked) as model:
            seconds = rows_of(model, options.rounds)
            found["rows"][Path(name).stem] = {"bytes": n_bytes, "weights": n_weights, "seconds": seconds}
            if name == options.model:
                found["answers"] = {n: answers_at_once(model, n, options.rounds // 4) for n in ANSWERS}
    with as_file(files("edge_spec.cli") / "prompts.txt") as own:
        prompts = [prompt.text for prompt in read_prompts(str(own))][: options.prompts]
    samplers: dict[str, dict[str, Any]] = {"greedily, without penalties": GREEDY, "its own sampler": {}}
    found["drafts"] = {}
    for name, sampler in samplers.items():
        *_, auto = bench(
            lambda mode: edge_spec.load(options.model, speculation=mode, **asked), prompts, modes=["auto"], **sampler
        )
        if not auto.same_text:
            raise SystemExit("drafts have changed a text: please report this")
        found["drafts"][name] = dict(zip(("speed_up", "low", "high"), (auto.speed_up, *auto.interval), strict=True))
    return found


def computer() -> str:
    """Return what the figures belong to: the computer, its memory and cores, and what computed."""
    hardware, device = describe(), probe()
    names = (hardware.board, hardware.processor, hardware.system)
    n_fast, n_slow = hardware.n_performance_cores, hardware.n_efficiency_cores
    kinds = f" ({n_fast} fast, {n_slow} efficient)" if n_fast is not None else ""
    n_cores = f"{device.n_physical_cores} cores{kinds}"
    library = f"edge-spec {edge_spec.__version__}, ONNX Runtime {installed('onnxruntime')}"
    return ", ".join((*filter(None, names), format_size(device.total_bytes), n_cores, library))


def tables(found: Mapping[str, Mapping[str, Any]], model: str) -> Iterator[str]:
    """Yield the lines of the report, by set of instructions."""
    for title, each in found.items():
        peak = each["products_per_s"]
        products = f"{peak / 1e9:.0f} G products of bytes a second at most" if peak else "products unknown"
        yield f"{title}: reads {each['bytes_per_s'] / 1e9:.1f} GB/s from memory, {products}"
    yield ""
    head = ["instructions", "model", *(f"{n} row{'s' * (n > 1)}, ms" for n in ROWS), f"prompt of {PROMPT}, ms"]
    yield from _head([*head, "of memory, 1 row", f"of products, {ROWS[-1]} rows", "in the prompt"])
    for title, each in found.items():
        for name, rows in each["rows"].items():
            seconds, peak = rows["seconds"], each["products_per_s"]
            times = [f"{taken * 1e3:.3g}" for taken in (*(seconds[str(n)] for n in ROWS), seconds["prompt"])]
            shares = [f"{rows['bytes'] / seconds['1'] / each['bytes_per_s']:.0%}"]
            for n, taken in ((ROWS[-1], seconds[str(ROWS[-1])]), (PROMPT, seconds["prompt"])):
                shares.append(f"{n * rows['weights'] / taken / peak:.0%}" if peak else "")
            yield _line([title, name, *times, *shares])
    yield ""
    drafts = [f"`auto`, {sampler}" for sampler in next(iter(found.values()))["drafts"]]
    yield from _head([f"instructions, {model}", *drafts, *(f"{n} answers at once" for n in ANSWERS)])
    for title, each in found.items():
        gains = [f"{one['speed_up']:.2f} ({one['low']:.2f} to {one['high']:.2f})" for one in each["drafts"].values()]
        yield _line([title, *gains, *(f"{ratio:.2f}" for ratio in each["answers"].values())])


def _head(cells: Sequence[str]) -> Iterator[str]:
    yield _line(cells)
    yield _line(["---"] * len(cells))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--shape", help="a model of random weights, see shape_files.py")
    parser.add_argument("--shapes", type=Path, metavar="FOLDER", help="where shapes are kept")
    parser.add_argument("--without", action="append", default=[], metavar="LIST", help="instructions to leave out")
    parser.add_argument("--threads", type=int, default=cores()[0])
    parser.add_argument("--rounds", type=int, default=20, help="of decodes; prompts and answers take a quarter of them")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shape-path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measured(options)))
        return 0
    if (options.shape is None) != (options.shapes is None):
        parser.error("--shape and --shapes belong together")
    command = [sys.executable, __file__, "--worker", *(each for each in sys.argv[1:])]
    if options.shape is not None:
        command += ["--shape-path", str(shape_file(options.shapes, options.shape, "Q4_0"))]
    found: dict[str, Any] = {}
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    for without in ["", *options.without]:
        with tempfile.TemporaryDirectory() as cache:
            environment = os.environ | {"EDGE_SPEC_WITHOUT": without}
            done = subprocess.run(
                [*command, "--cache", cache], env=environment, stdout=subprocess.PIPE, text=True, check=False
            )
        if done.returncode:
            print("the error above ended the report", file=sys.stderr)
            return 1
        each = json.loads(done.stdout.splitlines()[-1])
        found[f"{each['variant']}, forced" if without else each["variant"]] = each
    print(f"{computer()}, {options.threads} threads; {load} before the report\n")
    print("\n".join(tables(found, options.model)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
