"""Milliseconds of one decode by number of rows, on every engine, taken by turns.

    python tests/benchmarks/engine_widths.py [model.gguf] [--threads 1] [--cells 100] [--rounds 40] [--kv f32,f16]

Prints for llama.cpp, for ONNX Runtime with our kernels and for ONNX Runtime alone the median and the best over
rounds, all rows output. Engines and widths take turns within a round, so that noise meets all of them alike.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from edge_spec.backends.base import LanguageModel
from edge_spec.backends.llama import LlamaSettings, LlamaWeights, open_llama
from edge_spec.backends.onnx import OnnxSettings, open_onnx
from edge_spec.errors import UnsupportedModel
from edge_spec.models import inspect, resolve
from edge_spec.models.transcribe import FORMS, transcribe
from edge_spec.tree import Tree


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--widths", default="1,2,3,4,5,6,7,8,12,16")
    parser.add_argument("--prefill", type=int, default=256)
    parser.add_argument("--kv", default="f32", help="caches of ONNX Runtime with our kernels, such as f32,f16")
    arguments = parser.parse_args()
    widths = [int(text) for text in arguments.widths.split(",")]
    file = inspect(resolve(arguments.model))
    n_ctx = max(arguments.cells, arguments.prefill) + 64
    models: dict[str, LanguageModel] = {}
    weights = LlamaWeights(file.path)
    settings = LlamaSettings(n_ctx=n_ctx, n_threads=arguments.threads)
    models["llama.cpp"], _ = open_llama(weights, settings, file=file.fingerprint, cache_dir=None)
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS.values():
            try:
                source = transcribe(file, Path(folder), form=form)
            except UnsupportedModel as error:
                print(error)
                continue
            for kv in arguments.kv.split(",") if source.attention == "rows" else ["f32"]:
                onnx = OnnxSettings(n_ctx=n_ctx, n_threads=arguments.threads, kv=kv)
                model, _ = open_onnx(source, onnx, file=file.fingerprint, cache_dir=None)
                models[f"onnx {form.name} {kv}"] = model
        tokens = np.random.default_rng(0).integers(0, file.n_vocab, n_ctx).tolist()
        seconds = measure(models, widths, tokens, arguments.cells, arguments.rounds)
        for name, model in models.items():
            print(f"{name}, {model.traits.identity}, widths from {min(model.traits.widths, default=0)}")
            for kind, pick in (("median", statistics.median), ("best", min)):
                row = "  ".join(f"{n}: {pick(seconds[name, n]) * 1e3:.2f}" for n in widths)
                print(f"  {kind:>6} ms  {row}")
        for name, model in models.items():
            found = []
            for _ in range(5):
                model.rollback(0)
                start = perf_counter()
                model.prefill(tokens[: arguments.prefill])
                found.append(perf_counter() - start)
            print(f"{name}: prefill of {arguments.prefill} in {statistics.median(found) * 1e3:.1f} ms")
        for model in models.values():
            model.close()
    weights.close()


def measure(
    models: dict[str, LanguageModel], widths: list[int], tokens: list[int], n_cells: int, rounds: int
) -> dict[tuple[str, int], list[float]]:
    """Seconds of decodes after ``n_cells`` committed tokens, by engine and width."""
    seconds: dict[tuple[str, int], list[float]] = {}
    for model in models.values():
        model.prefill(tokens[:n_cells])
    for turn in range(rounds + 2):
        for name, model in models.items():
            for n in widths:
                draft = Tree.sequence(tokens[n_cells : n_cells + n])
                model.decode(draft)  # once more warm: the other engine had the caches
                model.rollback(n_cells)
                start = perf_counter()
                model.decode(draft)
                if turn >= 2:
                    seconds.setdefault((name, n), []).append(perf_counter() - start)
                model.rollback(n_cells)
    return seconds


if __name__ == "__main__":
    main()
