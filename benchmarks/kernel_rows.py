"""Milliseconds of 1 to 16 rows through the matrices of a model of 1.1 billion weights, by kernel variant.

    python benchmarks/kernel_rows.py [--kind Q4_0] [--threads 2] [--rounds 5] [--variants avx2,...]
    python benchmarks/kernel_rows.py --overhead

The matrices are those of TinyLlama: 22 layers of width 2048 with 2560 query, key and value outputs, 2 x 5632 gate and
up outputs, and a vocabulary of 32000; attention and norms are left out. They run in ONNX Runtime, as in the engine.
Widths alternate within a round, after one run each to warm up. Printed is the median, and in brackets the time relative
to one row.

The two lines below are shares of what ``peaks.py`` measures in the same run with as many threads: of the bytes per
second read from memory (packed weights count once), and of the products of bytes per second by the variant's
instruction. The second cannot reach 100 %: besides the eight multiplications of a block of 32 inputs and 16 outputs,
AVX-512 spends four instructions per row on scales and sums, and for Q4_0 some twenty per block on unpacking. AVX2
spends twice as many, its multiplications each need an addition, every two of them an instruction that broadcasts four
inputs, and from two rows on sums go through the cache.

With --overhead: the cost of one operator apart from its work, as the slope of time over the number of operators in a
chain that multiplies one row of 32 by a matrix of 32 x 32, beside that of one of ONNX Runtime's operators.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from peaks import Peaks

import edge_spec.engines.onnx.kernels as kernels
from edge_spec.engines.onnx.transcription.proto import FLOAT, UINT8, Graph
from edge_spec.models.gguf.types import TYPES

WIDTH, QKV, HIDDEN, VOCABULARY = 2048, 2560, 5632, 32000
ROWS = (1, 2, 3, 4, 6, 8, 12, 16)


def random_weights(kind: str, n_out: int, n_in: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Packed weights of random codes, scaled so that products with rows of size 1 have about size 1."""
    packed = kernels.pack(np.zeros((n_out, TYPES[kind].row_bytes(n_in)), np.uint8), kind)
    payload = packed[64:]
    payload[:] = rng.integers(0, 256, payload.size, dtype=np.uint8)
    if TYPES[kind].block == 1:
        values = (rng.standard_normal(n_out * n_in) / n_in**0.5).astype(np.float16 if kind == "F16" else np.float32)
        stored = (values.view(np.uint32) >> 16).astype(np.uint16) if kind == "BF16" else values
        payload[: stored.nbytes] = stored.view(np.uint8)
        return packed
    # The typical size of code - offset, times that of a sub-scale. A unit begins with its f16 scales.
    size_of = {
        "Q2": 1.9,
        "Q3": 2.3,
        "Q4": 4.6,
        "Q5": 9.2,
        "Q6": 18.5,
        "Q8": 74.0,
        "IQ": 64.0,
        "MX": 6.0,
        "TQ": 1.2,
        "Q1": 1.0,
    }[kind[:2]]
    size_of *= {"Q2_K": 9, "Q3_K": 74, "Q4_K": 2 * 147, "Q5_K": 2 * 147, "Q6_K": 74, "IQ4_XS": 74}.get(kind, 1)
    size_of *= 2 if kind in ("Q4_1", "Q5_1") else 1
    unit_weights = TYPES[kind].block
    units = payload.reshape(-1, kernels.packed_bytes(kind, 16, unit_weights) - 64)
    scale = np.full(16, 1 / (size_of * n_in**0.5), np.float32)
    scales = (scale.view(np.uint32) >> 16).astype(np.uint16) if kind == "MXFP4" else scale.astype(np.float16)
    units[:, :32] = scales.view(np.uint8)
    if kind in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"):
        units[:, 32:64] = 0
    return packed


def chain(weights: dict[str, npt.NDArray[np.uint8]], layers: int, variant: str) -> bytes:
    """The graph; weights are its inputs, so that they are not copied."""
    graph = Graph()

    def multiply(x: str, name: str, y: str, n_in: int, n_out: int) -> None:
        graph.node("MatMulRows", [x, name], [y], "edge_spec", n_in=n_in, n_out=n_out, variant=variant)

    def first(x: str, y: str, n: str) -> None:
        graph.node("Slice", [x, "zero", n, "last_axis"], [y])

    x = "x"
    for i in range(layers):
        multiply(x, f"qkv{i}", f"qkv_of{i}", WIDTH, QKV)
        first(f"qkv_of{i}", f"q{i}", "width")
        multiply(f"q{i}", f"o{i}", f"attended{i}", WIDTH, WIDTH)
        multiply(f"attended{i}", f"gate_up{i}", f"gate_up_of{i}", WIDTH, 2 * HIDDEN)
        first(f"gate_up_of{i}", f"gate{i}", "hidden")
        multiply(f"gate{i}", f"down{i}", f"x{i}", HIDDEN, WIDTH)
        x = f"x{i}"
    multiply(x, "logits", "y", WIDTH, VOCABULARY)
    graph.takes("x", FLOAT, ["rows", WIDTH])
    for name, array in weights.items():
        graph.takes(name, UINT8, [array.size])
    for name, value in {"zero": 0, "width": WIDTH, "hidden": HIDDEN, "last_axis": 1}.items():
        graph.constant(name, np.array([value], np.int64))
    graph.gives("y", FLOAT, ["rows", VOCABULARY])
    return graph.serialize()


def overhead(threads: int, rounds: int) -> None:
    """Print microseconds per operator."""
    lengths = (50, 250)
    packed = random_weights("Q4_0", 32, 32, np.random.default_rng(0))
    for operator in ("MatMulRows", "Mul"):
        runs = {}
        for length in lengths:
            graph = Graph()
            for i in range(length):
                x, y = f"x{i}" if i else "x", f"x{i + 1}" if i + 1 < length else "y"
                if operator == "Mul":
                    graph.node("Mul", [x, "twos"], [y])
                else:
                    graph.node(operator, [x, "packed"], [y], "edge_spec", n_in=32, n_out=32)
            if operator == "Mul":
                graph.constant("twos", np.full((1, 32), 2, np.float32))
            else:
                graph.constant("packed", packed)
            graph.takes("x", FLOAT, [1, 32])
            graph.gives("y", FLOAT, [1, 32])
            session = open_session(graph.serialize(), threads)
            binding = session.io_binding()
            binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 32), np.float32)))
            binding.bind_output("y")
            runs[length] = session, binding
        times: dict[int, list[float]] = {length: [] for length in lengths}
        for _ in range(200 * rounds):
            for length, (session, binding) in runs.items():
                start = time.perf_counter()
                session.run_with_iobinding(binding)
                times[length].append(time.perf_counter() - start)
        short, long = (statistics.median(times[length]) for length in lengths)
        print(f"{operator}: {(long - short) / (lengths[1] - lengths[0]) * 1e6:.2f} us per operator")


def open_session(model: bytes, threads: int) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.register_custom_ops_library(str(kernels.library_path()))
    return ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="Q4_0", choices=kernels.KINDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--variants", default=",".join(v for v in kernels.features() if v != "reference"))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--overhead", action="store_true")
    options = parser.parse_args()
    if options.overhead:
        overhead(options.threads, options.rounds)
        return
    rows = [int(n) for n in options.rows.split(",")]
    rng = np.random.default_rng(0)
    shapes = {
        "qkv": (QKV, WIDTH),
        "o": (WIDTH, WIDTH),
        "gate_up": (2 * HIDDEN, WIDTH),
        "down": (WIDTH, HIDDEN),
    }
    weights = {
        f"{name}{i}": random_weights(options.kind, *shape, rng)
        for i in range(options.layers)
        for name, shape in shapes.items()
    }
    weights["logits"] = random_weights(options.kind, VOCABULARY, WIDTH, rng)
    n_bytes = sum(array.nbytes for array in weights.values())
    n_weights = options.layers * sum(n_out * n_in for n_out, n_in in shapes.values()) + VOCABULARY * WIDTH
    print(f"{options.kind}, {n_bytes / 1e6:.0f} MB, {options.threads} threads, median of {options.rounds}")
    with tempfile.TemporaryDirectory() as folder:
        peaks = Peaks(options.threads, Path(folder))
    readable = peaks.bytes_per_s()
    print(f"{'memory':16} {readable / 1e9:.1f} GB/s read by {options.threads} threads")
    for variant in options.variants.split(","):
        session = open_session(chain(weights, options.layers, variant), options.threads)
        bindings = {}
        for n in rows:
            binding = session.io_binding()
            for name, array in weights.items():
                binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
            x = ort.OrtValue.ortvalue_from_numpy(rng.standard_normal((n, WIDTH)).astype(np.float32))
            binding.bind_ortvalue_input("x", x)
            binding.bind_output("y")
            session.run_with_iobinding(binding)
            bindings[n] = binding
        times: dict[int, list[float]] = {n: [] for n in rows}
        for _ in range(options.rounds):
            for n, binding in bindings.items():
                start = time.perf_counter()
                session.run_with_iobinding(binding)
                times[n].append(time.perf_counter() - start)
        median = {n: statistics.median(taken) for n, taken in times.items()}
        curve = "  ".join(f"{n}: {1e3 * t:.1f} ms ({t / median[rows[0]]:.2f})" for n, t in median.items())
        print(f"{variant:16} {curve}")
        shares = "  ".join(f"{n}: {n_bytes / t / readable:.0%}" for n, t in median.items())
        print(f"{'of memory':>16} {shares}")
        possible = peaks.products_per_s(variant)
        if possible is not None:
            shares = "  ".join(f"{n}: {n * n_weights / t / possible:.0%}" for n, t in median.items())
            print(f"{'of products':>16} {shares}  of {possible / 1e9:.0f} G/s")


if __name__ == "__main__":
    main()
