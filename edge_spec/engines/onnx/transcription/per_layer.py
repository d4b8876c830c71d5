"""Numbers of its own that each layer takes in for every token, as in Gemma 4: from a table, and from its embedding.

The table has more numbers than all matrices of a small model, and a decode needs a row of it for each token. So it
stays in the model's file, from where a session reads the rows (``RowTable``), and the graph takes them as an input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edge_spec.engines.onnx.transcription.matrices import Array
from edge_spec.engines.onnx.transcription.proto import FLOAT
from edge_spec.engines.onnx.transcription.recurrent import Parts, Shape
from edge_spec.models.gguf.header import TensorInfo
from edge_spec.models.model_file import ModelFile

__all__ = ["PER_LAYER", "PerLayerInputs", "per_layer_table"]

PER_LAYER = "per_layer"
"""The graph's input with the rows of the table, f32 ``[1, S, n_layers * width]``."""

_MODEL_PROJECTION = "per_layer_model_proj"
"""The matrix that makes the part of all layers that comes from a token's embedding."""

_TABLE = "per_layer_token_embd.weight"

_MS = "com.microsoft"


@dataclass(frozen=True, kw_only=True)
class PerLayerInputs:
    """What layers take in for every token, with the sizes of one model.

    Attributes:
        width: numbers of a layer.
        epsilon: of the root-mean-square norm.
    """

    n_layers: int
    n_embd: int
    n_vocab: int
    width: int
    epsilon: float

    @property
    def n_all(self) -> int:
        """Numbers of all layers."""
        return self.n_layers * self.width

    def shapes(self) -> dict[str, Shape]:
        """Return the tensors that all layers share, and their shapes."""
        return {
            _TABLE: (self.n_all, self.n_vocab),
            f"{_MODEL_PROJECTION}.weight": (self.n_embd, self.n_all),
            "per_layer_proj_norm.weight": (self.width,),
        }

    def layer_shapes(self) -> dict[str, Shape]:
        """Return the tensors of a layer, by what follows ``blk.N.`` in their names."""
        return {
            "inp_gate.weight": (self.n_embd, self.width),
            "proj.weight": (self.width, self.n_embd),
            "post_norm.weight": (self.n_embd,),
        }

    def begin(self, parts: Parts, x: str) -> None:
        """Add what all layers take in, as ``project_per_layer_inputs`` in llama.cpp's src/models/gemma4.cpp makes it.

        Args:
            x: the embeddings.
        """
        graph = parts.graph
        graph.takes(PER_LAYER, FLOAT, (1, "S", self.n_all))
        (projected,) = parts.products(x, [_MODEL_PROJECTION], "per_layer.projected")
        layers = graph.constant("per_layer.shape", np.array([1, -1, self.n_layers, self.width], np.int64))
        flat = graph.constant("per_layer.flat", np.array([1, -1, self.n_all], np.int64))
        graph.node("Mul", [projected, self._number(parts, "shrunk", self.n_embd**-0.5)], ["per_layer.shrunk"])
        graph.node("Reshape", ["per_layer.shrunk", layers], ["per_layer.apart"])
        self._norm(parts, "per_layer.apart", "per_layer_proj_norm.weight", "per_layer.normed")
        graph.node("Reshape", ["per_layer.normed", flat], ["per_layer.side"])
        graph.node("Mul", [PER_LAYER, self._number(parts, "looked_up", math.sqrt(self.width))], ["per_layer.looked_up"])
        graph.node("Add", ["per_layer.side", "per_layer.looked_up"], ["per_layer.sum"])
        graph.node("Mul", ["per_layer.sum", self._number(parts, "all", 0.5**0.5)], ["per_layer.all"])
        sizes = graph.constant("per_layer.sizes", np.full(self.n_layers, self.width, np.int64))
        names = [f"per_layer.{layer}" for layer in range(self.n_layers)]
        graph.node("Split", ["per_layer.all", sizes], names, axis=-1)

    def add(self, parts: Parts, layer: int, x: str) -> str:
        """Add what a layer makes of its numbers, which is added to ``x``; returns its name."""
        graph, blk = parts.graph, f"blk.{layer}."
        (gate,) = parts.products(x, [f"{blk}inp_gate"], f"{blk}inp_gate.y")
        graph.node("FastGelu", [gate], [f"{gate}.gelu"], _MS)
        graph.node("Mul", [f"{gate}.gelu", f"per_layer.{layer}"], [f"{gate}.gated"])
        (out,) = parts.products(f"{gate}.gated", [f"{blk}proj"], f"{blk}proj.y")
        self._norm(parts, out, f"{blk}post_norm.weight", f"{out}.normed")
        return f"{out}.normed"

    def _norm(self, parts: Parts, x: str, weight: str, y: str) -> None:
        inputs = [x, parts.vector(weight)]
        parts.graph.node("SimplifiedLayerNormalization", inputs, [y], epsilon=self.epsilon, axis=-1, stash_type=1)

    def _number(self, parts: Parts, name: str, value: float) -> str:
        number: Array = np.array(value, np.float32)
        return parts.graph.constant(f"per_layer.{name}.factor", number)


def per_layer_table(file: ModelFile) -> TensorInfo | None:
    """Return the table that stays in a model's file; None if it has none."""
    return next((tensor for tensor in file.tensors if tensor.name == _TABLE), None)
