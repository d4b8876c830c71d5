"""Laws of fused graphs: few operators whatever the architecture, runs of a bounded length, tables that are checked."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from families import EXPERT_FAMILIES, FAMILIES, FLOAT_KINDS
from gguf_files import write_gguf

import edge_spec.engines.onnx.kernels as kernels
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.onnx.transcription.fusion import THREADS, fuse
from edge_spec.engines.onnx.transcription.proto import FLOAT, INT64, UINT8, Graph, Node
from edge_spec.models import inspect

pytestmark = pytest.mark.skipif(kernels.available() is not None, reason="the kernels were not built")

AROUND = {"GatherRows", "Gather", "MatMulRows", "Mul", "Tanh"}
"""Before and after the layers."""


@pytest.mark.long
@pytest.mark.parametrize("family", [*FAMILIES, *EXPERT_FAMILIES])
def test_layers_are_few_operators_in_every_architecture(tmp_path: Path, family: str) -> None:
    facts = (FAMILIES | EXPERT_FAMILIES)[family]
    path = write_gguf(tmp_path / "model.gguf", kinds=FLOAT_KINDS, **facts)
    written = onnx.load(transcribe(inspect(path), tmp_path / "cache").graph(f16=True), load_external_data=False)
    names = [node.op_type for node in written.graph.node]
    n_experts = names.count("ExpertRows")
    assert names.count("LayerRows") == 1 + n_experts
    assert set(names) <= {*AROUND, "LayerRows", "ExpertRows"}
    assert len(names) <= 5 + 2 * n_experts


# --- runs


def layers(n: int, width: int) -> Graph:
    """A graph of products and sums: each layer ends with ``sum.N``."""
    graph = Graph()
    graph.takes("sum.0", FLOAT, (1, "S", width))
    graph.gives(f"sum.{n}", FLOAT, (1, "S", width))
    for layer in range(n):
        weights = graph.external(f"w.{layer}", UINT8, (1,), {"location": "weights"})
        sizes = {"n_in": width, "n_out": width}
        graph.node(kernels.MATMUL_ROWS, [f"sum.{layer}", weights], [f"y.{layer}"], kernels.DOMAIN, **sizes)
        graph.node("Add", [f"sum.{layer}", f"y.{layer}"], [f"sum.{layer + 1}"])
    return graph


def fused(n: int, width: int, *, visible: bool) -> list[Node]:
    graph = layers(n, width)
    fuse(graph, {f"sum.{layer}" for layer in range(1, n)}, visible=visible)
    return graph.nodes


@pytest.mark.parametrize(("width", "n_runs"), [(512, 1), (8192, 8)])
def test_a_run_spans_layers_up_to_a_bound_and_gives_what_is_visible(width: int, n_runs: int) -> None:
    sums = {f"sum.{layer}" for layer in range(1, 9)}
    for visible in (False, True):
        nodes = fused(8, width, visible=visible)
        assert len(nodes) == n_runs
        given = sums & {name for node in nodes for name in node.outputs}
        assert given == sums if visible or n_runs == len(sums) else given == {"sum.8"}


def test_what_is_not_known_stays_as_it_is() -> None:
    graph = layers(2, 512)
    graph.node("Softmax", ["sum.2"], ["shares"], axis=-1)
    graph.node("Add", ["shares", "y.0"], ["end"])
    graph.gives("end", FLOAT, (1, "S", 512))
    fuse(graph)
    assert [node.operator for node in graph.nodes] == ["LayerRows", "Softmax", "Add"]
    assert {"sum.2", "y.0"} <= set(graph.nodes[0].outputs)


# --- what a session refuses


class Layer:
    """A run of its own: two products with a gate between them, and a sum.

    Between the products an array wider than the first one's result comes after its last use: where rows go by in tiles,
    it must not lie in the place of what later tiles have yet to read.
    """

    width, n_ff = 128, 96

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.matrices = {
            name: kernels.pack(
                gguf.quants.quantize(rng.standard_normal(shape).astype(np.float32), gguf.GGMLQuantizationType.Q4_0),
                "Q4_0",
            )
            for name, shape in {"up": (2 * self.n_ff, self.width), "down": (self.width, 3 * self.n_ff)}.items()
        }
        self.x = rng.standard_normal((1, 40, self.width)).astype(np.float32)

    def graph(self) -> Graph:
        graph, width, n_ff = Graph(), self.width, self.n_ff
        graph.takes("x", FLOAT, (1, "S", width))
        graph.gives("y", FLOAT, (1, "S", width))
        norm = graph.constant("norm", np.ones(width, np.float32))
        for name, packed in self.matrices.items():
            graph.constant(name, packed)
        graph.node("SimplifiedLayerNormalization", ["x", norm], ["normed"], epsilon=1e-5, axis=-1, stash_type=1)
        graph.node(kernels.MATMUL_ROWS, ["normed", "up"], ["both"], kernels.DOMAIN, n_in=width, n_out=2 * n_ff)
        graph.node("Split", ["both", graph.constant("sizes", np.array([n_ff, n_ff]))], ["gate", "other"], axis=-1)
        graph.node("QuickGelu", ["gate"], ["hidden"], "com.microsoft", alpha=1.0)
        graph.node("Mul", ["hidden", "other"], ["gated"])
        graph.node("Concat", ["gated", "gated", "gated"], ["wide"], axis=-1)
        graph.node(kernels.MATMUL_ROWS, ["wide", "down"], ["added"], kernels.DOMAIN, n_in=3 * n_ff, n_out=width)
        graph.node("Add", ["x", "added"], ["y"])
        fuse(graph)
        return graph

    def run(
        self, graph: Graph, n_threads: int = 1, x: np.ndarray[Any, Any] | None = None, shared_by: int | None = None
    ) -> np.ndarray[Any, Any]:
        """Run it in a session of so many threads, ``shared_by`` of which share the work; all if it is None."""
        settings = ort.SessionOptions()
        settings.log_severity_level = 4
        settings.intra_op_num_threads = n_threads
        settings.register_custom_ops_library(str(kernels.library_path()))
        session = ort.InferenceSession(graph.serialize(), settings, providers=["CPUExecutionProvider"])
        of_run = np.array([n_threads if shared_by is None else shared_by])
        (y,) = session.run(["y"], {"x": self.x if x is None else x, THREADS: of_run})
        return np.asarray(y)


@pytest.fixture(scope="module")
def layer() -> Layer:
    return Layer()


def test_a_run_gives_the_same_bits_with_every_number_of_threads_and_rows(layer: Layer) -> None:
    graph = layer.graph()
    y = layer.run(graph)
    for n_threads in (2, 3, 5):
        assert np.array_equal(layer.run(graph, n_threads), y)
    for shared_by in (1, 2, 3, 5, 8):
        assert np.array_equal(layer.run(graph, 3, shared_by=shared_by), y)
    for n in (1, 16, 17):
        assert np.array_equal(layer.run(graph, 2, layer.x[:, :n]), y[:, :n])
    assert layer.run(graph, 2, layer.x[:, :0]).shape == (1, 0, layer.width)


@pytest.mark.parametrize("table", ["steps", "places"])
def test_impossible_steps_and_places_are_refused(layer: Layer, table: str) -> None:
    graph, chance = layer.graph(), random.Random(table)
    (name,) = (each for each in graph.arrays if each.endswith(f".{table}"))
    right, n_refused = graph.arrays[name].copy(), 0
    for _ in range(150):
        wrong = right.copy()
        wrong[chance.randrange(len(wrong)), chance.randrange(wrong.shape[1])] = chance.choice(
            (-1, 0, 1, 2, 3, 5, 11, 12, 63, 64, 97, 1000, 1 << 31, -(1 << 63))
        )
        graph.constant(name, wrong)
        try:
            layer.run(graph)
        except Exception as error:
            assert "edge_spec" in str(error) or "packed weights" in str(error)
            n_refused += 1
    assert n_refused > 30


def test_cut_off_or_variable_tables_are_refused(layer: Layer) -> None:
    for table in ("steps", "places"):
        graph = layer.graph()
        (name,) = (each for each in graph.arrays if each.endswith(f".{table}"))
        graph.constant(name, graph.arrays[name].reshape(-1)[:-1])
        with pytest.raises(Exception, match="cut off"):
            layer.run(graph)
        del graph.constants[name]
        graph.takes(name, INT64, ("a", "b"))
        with pytest.raises(Exception, match="must be constant"):
            layer.run(graph)


@pytest.mark.parametrize("n_threads", [0, -1, 1 << 31])
def test_impossible_numbers_of_threads_are_refused(layer: Layer, n_threads: int) -> None:
    with pytest.raises(Exception, match="impossible number of threads"):
        layer.run(layer.graph(), shared_by=n_threads)


def test_rows_of_another_width_are_refused(layer: Layer) -> None:
    graph = layer.graph()
    graph.takes("x", FLOAT, (1, "S", "W"))
    with pytest.raises(Exception, match="do not fit each other"):
        layer.run(graph, 1, layer.x[:, :, :96])
