"""What is computed between our matrices gives a row the same bits whatever the other rows and threads are: those that
``kernels/src/rowwise.h`` defines, which are ONNX Runtime's own up to the last places."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest

from edge_spec.engines.onnx.kernels import available, library_path
from edge_spec.engines.onnx.transcription.fusion import THREADS, fuse
from edge_spec.engines.onnx.transcription.proto import FLOAT, Graph

pytestmark = pytest.mark.skipif(available() is not None, reason="the kernels were not built")

Array = npt.NDArray[np.float32]

N_ROWS = 40
WIDTHS = (1, 3, 31, 100, 513, 5633)
MS = "com.microsoft"
EPSILON = 1e-6
FACTOR = np.array(0.22, np.float32)
FUSED = ["norm", "norm of a sum", "GELU", "SiLU", "sigmoid", "ReLU", "product", "scale", "sum", "bias"]
FUSED += ["halves", "heads"]


def added_to(operator: str, graph: Graph, width: int, vector: str) -> None:
    """The operator as our graphs use it, from x (and a) to y."""
    norm = {"epsilon": EPSILON}
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
    elif operator == "ReLU":
        graph.node("Relu", ["x"], ["y"])
    elif operator == "tanh":
        graph.node("Tanh", ["x"], ["y"])
    elif operator == "product":
        graph.node("Mul", ["x", "a"], ["y"])
    elif operator == "scale":
        graph.node("Mul", ["x", graph.constant("factor", FACTOR)], ["y"])
    elif operator == "halves":  # those of x and a, the other way around
        sizes = graph.constant("sizes", np.array([width // 2, width - width // 2], np.int64))
        graph.node("Concat", ["x", "a"], ["both"], axis=-1)
        whole = graph.constant("whole", np.array([width, width], np.int64))
        graph.node("Split", ["both", whole], ["first", "second"], axis=-1)
        graph.node("Split", ["first", sizes], ["left", "right"], axis=-1)
        graph.node("Concat", ["right", "left"], ["turned"], axis=-1)
        graph.node("Add", ["turned", "second"], ["y"])
    elif operator == "heads":  # two of each row: the first half of each, then the second half of each
        heads = graph.constant("heads", np.array([1, -1, 2, width], np.int64))
        flat = graph.constant("flat", np.array([1, -1, 2 * (width // 2)], np.int64))
        rest = graph.constant("rest", np.array([1, -1, 2 * (width - width // 2)], np.int64))
        sizes = graph.constant("sizes", np.array([width // 2, width - width // 2], np.int64))
        graph.node("Concat", ["x", "a"], ["both"], axis=-1)
        graph.node("Reshape", ["both", heads], ["apart"])
        graph.node("Split", ["apart", sizes], ["first", "second"], axis=-1)
        graph.node("Reshape", ["first", flat], ["first.flat"])
        graph.node("Reshape", ["second", rest], ["second.flat"])
        graph.node("Concat", ["first.flat", "second.flat"], ["y"], axis=-1)
    else:
        graph.node("Add", ["x", vector if operator == "bias" else "a"], ["y"])


def vector_of(width: int) -> Array:
    return np.random.default_rng(1).standard_normal(width).astype(np.float32)


def session(operator: str, width: int, n_threads: int, *, fused: bool = True) -> ort.InferenceSession:
    graph = Graph()
    graph.takes("x", FLOAT, [1, "S", width])
    graph.takes("a", FLOAT, [1, "S", width])
    graph.gives("y", FLOAT, [1, "S", width * (1 + (operator == "heads"))])
    added_to(operator, graph, width, graph.constant("vector", vector_of(width)))
    if fused:
        fuse(graph)
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = n_threads
    settings.register_custom_ops_library(str(library_path()))
    return ort.InferenceSession(graph.serialize(), settings, providers=["CPUExecutionProvider"])


def run(running: ort.InferenceSession, x: Array, a: Array, n_threads: int = 1) -> Array:
    given = {"x": x, "a": a, THREADS: np.array([n_threads])}
    (y,) = running.run(["y"], {each.name: given[each.name] for each in running.get_inputs()})
    return np.asarray(y)


def rows_of(width: int) -> tuple[Array, Array]:
    x, a = (4 * np.random.default_rng(0).standard_normal((2, 1, N_ROWS, width))).astype(np.float32)
    return x, a


@pytest.mark.parametrize("operator", [*FUSED, "tanh"])
def test_a_row_does_not_depend_on_the_other_rows_or_the_threads(operator: str) -> None:
    for width in WIDTHS[1:]:
        x, a = rows_of(width)
        expected: npt.NDArray[np.uint32] | None = None
        for n_threads in (1, 2):
            running = session(operator, width, n_threads)
            for n in (N_ROWS, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17):
                for start in (0, 5) if n < N_ROWS else (0,):
                    part = slice(start, start + n)
                    y = run(running, x[:, part], a[:, part], n_threads)
                    expected = y.view(np.uint32) if expected is None else expected
                    assert np.array_equal(y.view(np.uint32), expected[:, part]), (width, n_threads, n, start)


@pytest.mark.parametrize("operator", FUSED)
def test_fused_operators_compute_what_they_replace(operator: str) -> None:
    for width in WIDTHS[1:]:
        x, a = rows_of(width)
        fused, apart = (run(session(operator, width, 1, fused=each), x, a) for each in (True, False))
        np.testing.assert_allclose(fused, apart, rtol=2e-6, atol=1e-7)


# --- the bits, by the definitions in rowwise.h


def fma(a: Array, b: Array | np.float32, c: Array | np.float32) -> Array:
    """Rounded once, but for rare cases in the last place: products of two float32 are exact in float64."""
    rounded: Array = (a.astype(np.float64) * np.float64(b) + np.float64(c)).astype(np.float32)
    return rounded


def ratio(x: Array, bound: float, above: list[float], below: list[float]) -> Array:
    x = np.clip(x, np.float32(-bound), np.float32(bound))

    def polynomial(coefficients: list[float]) -> Array:
        first, *rest = (np.float32(each) for each in coefficients)
        sums = np.full_like(x, first)
        for each in rest:
            sums = fma(sums, x * x, each)
        return sums

    quotient: Array = polynomial(above) * x / polynomial(below)
    return quotient


def sigmoid(x: Array) -> Array:
    above = [4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03]
    above += [2.48287947061529e-01]
    below = [6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03]
    return np.clip(
        ratio(x, 18, above, [*below, 1.16817656904453e-01, 9.93151921023180e-01]) + np.float32(0.5),
        np.float32(0),
        np.float32(1),
    )


def gelu(x: Array) -> Array:
    above = [-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08]
    above += [1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03]
    below = [1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03]
    inner = x * (np.float32(0.035677408136300125) * x * x + np.float32(0.7978845608028654))
    outer: Array = np.float32(0.5) * x * (ratio(inner, 9, above, below) + np.float32(1))
    return outer


def root(squares: Array, width: int) -> Array:
    m: Array = np.sqrt(squares / np.float32(width) + np.float32(EPSILON))[:, None]
    return m


def norm_in_order(x: Array) -> Array:
    sums = np.zeros(len(x), np.float32)
    for column in x.T:
        sums = sums + column * column
    y: Array = x / root(sums, x.shape[1]) * vector_of(x.shape[1])
    return y


def norm(x: Array) -> Array:
    width = x.shape[1]
    if width < 16:
        return norm_in_order(x)
    lanes, whole = np.zeros((len(x), 8), np.float32), width // 8 * 8
    for at in range(0, whole, 8):
        lanes = fma(x[:, at : at + 8], x[:, at : at + 8], lanes)
    for apart in (4, 2, 1):
        lanes = lanes[:, :apart] + lanes[:, apart:]
    sums = lanes[:, 0]
    for column in x.T[whole:]:
        sums = fma(column, column, sums)
    y: Array = x * (np.float32(1) / root(sums, width)) * vector_of(width)
    return y


@pytest.mark.parametrize(
    ("operator", "defined"),
    [
        ("norm", lambda x, a: norm(x)),
        ("norm of a sum", lambda x, a: norm_in_order(x + a)),
        ("sigmoid", lambda x, a: sigmoid(x)),
        ("SiLU", lambda x, a: x * sigmoid(x)),
        ("GELU", lambda x, a: gelu(x)),
    ],
)
def test_fused_operators_give_the_bits_of_their_definitions(
    operator: str, defined: Callable[[Array, Array], Array]
) -> None:
    for width in WIDTHS:
        x, a = rows_of(width)
        y = run(session(operator, width, 1), x, a)
        assert np.array_equal(y[0].view(np.uint32), defined(x[0], a[0]).view(np.uint32)), width
