"""What ONNX Runtime computes between our matrices gives a row the same bits whatever the other rows and threads are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest

from edge_spec.engines.onnx.transcription.proto import FLOAT, Graph

N_ROWS = 40
MS = "com.microsoft"


def added_to(operator: str, graph: Graph, vector: str) -> None:
    """The operator as our graphs use it, from x (and a) to y."""
    norm = {"epsilon": 1e-6}
    if operator == "norm":
        graph.node("SimplifiedLayerNormalization", ["x", vector], ["y"], **norm, axis=-1, stash_type=1)
    elif operator == "norm of a sum":
        graph.node("SkipSimplifiedLayerNormalization", ["x", "a", vector], ["y", "", "", "sum"], MS, **norm)
    elif operator == "GELU":
        graph.node("FastGelu", ["x"], ["y"], MS)
    elif operator == "SiLU":
        graph.node("QuickGelu", ["x"], ["y"], MS, alpha=1.0)
    elif operator == "sigmoid":
        graph.node("Sigmoid", ["x"], ["y"])
    elif operator == "tanh":
        graph.node("Tanh", ["x"], ["y"])
    elif operator == "product":
        graph.node("Mul", ["x", "a"], ["y"])
    elif operator == "scale":
        graph.node("Mul", ["x", graph.constant("factor", np.array(0.22, np.float32))], ["y"])
    else:
        graph.node("Add", ["x", vector if operator == "bias" else "a"], ["y"])


def session(operator: str, width: int, n_threads: int) -> ort.InferenceSession:
    graph = Graph()
    graph.takes("x", FLOAT, [1, "S", width])
    graph.takes("a", FLOAT, [1, "S", width])
    vector = graph.constant("vector", np.random.default_rng(1).standard_normal(width).astype(np.float32))
    added_to(operator, graph, vector)
    graph.gives("y", FLOAT, [1, "S", width])
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = n_threads
    return ort.InferenceSession(graph.serialize(), settings, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "operator", ["norm", "norm of a sum", "GELU", "SiLU", "sigmoid", "tanh", "product", "scale", "sum", "bias"]
)
def test_a_row_does_not_depend_on_the_other_rows_or_the_threads(operator: str) -> None:
    rng = np.random.default_rng(0)
    for width in (1, 3, 31, 100, 513, 5633):
        x, a = (4 * rng.standard_normal((2, 1, N_ROWS, width))).astype(np.float32)
        expected: npt.NDArray[np.uint32] | None = None
        for n_threads in (1, 2):
            running = session(operator, width, n_threads)
            for n in (N_ROWS, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17):
                for start in (0, 5) if n < N_ROWS else (0,):
                    part = slice(start, start + n)
                    (y,) = running.run(["y"], {"x": x[:, part], "a": a[:, part]})
                    expected = y.view(np.uint32) if expected is None else expected
                    assert np.array_equal(y.view(np.uint32), expected[:, part]), (width, n_threads, n, start)
