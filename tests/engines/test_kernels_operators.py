"""The kernels inside ONNX Runtime give what they give outside, and refuse weights that do not belong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from kernel_calls import matmul_rows, weights

import edge_spec.engines.onnx.kernels as kernels
from edge_spec.engines.onnx.transcription.proto import FLOAT, INT64, UINT8, Graph

pytestmark = pytest.mark.skipif(kernels.available() is not None, reason=str(kernels.available()))
N_OUT, N_IN = 1000, 1024


@pytest.fixture(scope="module")
def packed() -> npt.NDArray[np.uint8]:
    weights = np.random.default_rng(0).standard_normal((N_OUT, N_IN)).astype(np.float32)
    return kernels.pack(gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q4_0), "Q4_0")


def session(
    packed: npt.NDArray[np.uint8],
    *,
    constant: bool = True,
    n_in: int = N_IN,
    n_out: int = N_OUT,
    variant: str = "",
) -> ort.InferenceSession:
    graph = Graph()
    graph.takes("x", FLOAT, ["batch", "rows", "width"])
    graph.takes("ids", INT64, ["batch", "rows"])
    if constant:
        graph.constant("w", packed)
    else:
        graph.takes("w", UINT8, ["bytes"])
    graph.node(kernels.GATHER_ROWS, ["ids", "w"], ["e"], kernels.DOMAIN, n_in=n_in, n_out=n_out)
    graph.node(kernels.MATMUL_ROWS, ["x", "w"], ["y"], kernels.DOMAIN, n_in=n_in, n_out=n_out, variant=variant)
    graph.gives("e", FLOAT, ["batch", "rows", n_in])
    graph.gives("y", FLOAT, ["batch", "rows", n_out])
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 2
    settings.register_custom_ops_library(str(kernels.library_path()))
    return ort.InferenceSession(graph.serialize(), settings, providers=["CPUExecutionProvider"])


IDS = np.zeros((1, 1), np.int64)


@pytest.mark.parametrize("variant", ["", "reference"])
def test_the_operator_gives_the_bits_of_the_kernel(packed: npt.NDArray[np.uint8], variant: str) -> None:
    running = session(packed, variant=variant)
    for shape in ((1, 1), (2, 3), (1, 16), (1, 100), (1, 0)):
        x = np.random.default_rng(1).standard_normal((*shape, N_IN)).astype(np.float32)
        (y,) = running.run(["y"], {"x": x, "ids": IDS})
        assert y.shape == (*shape, N_OUT)
        assert (y.reshape(-1, N_OUT) == matmul_rows(packed, x.reshape(-1, N_IN))).all()


def test_a_prompt_longer_than_a_pass_gives_the_bits_of_its_rows(packed: npt.NDArray[np.uint8]) -> None:
    x = np.random.default_rng(2).standard_normal((1, 600, N_IN)).astype(np.float32)
    (y,) = session(packed).run(["y"], {"x": x, "ids": IDS})
    assert (y[0] == matmul_rows(packed, x[0])).all()


def test_gathered_rows_are_the_weights(packed: npt.NDArray[np.uint8]) -> None:
    ids = np.array([[0, 999, 17], [17, 5, 500]])
    (e,) = session(packed).run(["e"], {"x": np.zeros((1, 1, N_IN), np.float32), "ids": ids})
    assert (e == weights(packed)[ids]).all()


def test_one_session_serves_several_threads(packed: npt.NDArray[np.uint8]) -> None:
    running = session(packed)
    rows = np.random.default_rng(3).standard_normal((40, 1, 3, N_IN)).astype(np.float32)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: running.run(["y"], {"x": x, "ids": IDS})[0], rows))
    for x, y in zip(rows, results, strict=True):
        assert (y[0] == matmul_rows(packed, x[0])).all()


@pytest.mark.parametrize("damage", ["cut", "longer", "magic", "version", "kind", "rows", "size"])
@pytest.mark.parametrize("constant", [True, False])
def test_damaged_weights_are_an_error(packed: npt.NDArray[np.uint8], damage: str, constant: bool) -> None:
    broken = packed.copy()
    if damage == "cut":
        broken = broken[:-1]
    elif damage == "longer":
        broken = np.concatenate([broken, broken[:16]])
    else:
        broken[{"magic": 0, "version": 8, "kind": 12, "rows": 18, "size": 32}[damage]] += 1
    with pytest.raises(Exception, match="packed weights"):
        running = session(broken, constant=constant)
        feeds = {"x": np.zeros((1, 1, N_IN), np.float32), "ids": IDS}
        running.run(None, feeds if constant else {**feeds, "w": broken})


def test_weights_of_another_graph_and_wrong_inputs_are_errors(packed: npt.NDArray[np.uint8]) -> None:
    with pytest.raises(Exception, match="another shape"):
        session(packed, n_out=N_OUT + 1)
    with pytest.raises(Exception, match="no such variant"):
        session(packed, variant="nonsense")
    running = session(packed)
    with pytest.raises(Exception, match="last dimension"):
        running.run(None, {"x": np.zeros((1, 1, N_IN - 32), np.float32), "ids": IDS})
    for wrong in (-1, N_OUT):
        with pytest.raises(Exception, match="out of range"):
            running.run(None, {"x": np.zeros((1, 1, N_IN), np.float32), "ids": IDS + wrong})
