"""Grows ONNX graphs, node by node."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import onnx
from gguf import GGMLQuantizationType
from onnx import TensorProto, helper, numpy_helper
from published_weights import Array, Weights

KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


class Graph:
    """Grows a graph; every method returns the name of what it adds."""

    def __init__(self, weights: Weights, kind: str, *, four_bits: bool) -> None:
        self.w, self.kind, self.four_bits = weights, kind, four_bits
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def add(self, operator: str, *inputs: str, n: int = 1, domain: str = "", **attributes: Any) -> Any:
        outs = [f"{operator}_{len(self.nodes)}_{place}" for place in range(n)]
        self.nodes.append(helper.make_node(operator, inputs, outs, domain=domain, **attributes))
        return outs[0] if n == 1 else outs

    def ms(self, operator: str, *inputs: str, n: int = 1, **attributes: Any) -> Any:
        return self.add(operator, *inputs, n=n, domain="com.microsoft", **attributes)

    def const(self, value: Any, kind: Any = np.int64, name: str = "") -> str:
        array = np.asarray(value, kind)
        name = name or f"c_{array.dtype}_{array.shape}_{array.tobytes().hex()[:400]}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def real(self, value: Any, name: str = "") -> str:
        return self.const(value, self.kind, name)

    def cast(self, x: str, kind: str) -> str:
        return str(self.add("Cast", x, to=KINDS[kind]))

    def embed(self, ids: str) -> str:
        return str(self.add("Gather", self.real(self.w.arrays["token_embd"], "embed.weight"), ids))

    def multiply(self, x: str, name: str) -> str:
        matrix = self.w.arrays[name]
        if not self.four_bits:
            return str(self.add("MatMul", x, self.real(matrix.T, name + ".weight")))
        n_out, n_in = matrix.shape
        blocks = gguf.quants.quantize(matrix, GGMLQuantizationType.Q4_0).reshape(n_out, n_in // 32, 18)
        low, high = blocks[..., 2:] & 15, blocks[..., 2:] >> 4
        values = np.concatenate([low, high], axis=-1)
        packed = (values[..., ::2] | values[..., 1::2] << 4).astype(np.uint8)
        scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].reshape(-1)
        return str(
            self.ms(
                "MatMulNBits",
                x,
                self.const(packed, np.uint8, name + ".q4"),
                self.real(scales, name + ".scales"),
                K=n_in,
                N=n_out,
                bits=4,
                block_size=32,
                accuracy_level=4,
            )
        )

    def norm(self, x: str, name: str) -> str:
        """Root-mean-square norm, in 32 bits as exporters write it."""
        wide = self.cast(x, "float32") if self.kind != "float32" else x
        mean = self.add("ReduceMean", self.add("Mul", wide, wide), axes=[-1], keepdims=1)
        root = self.add("Sqrt", self.add("Add", mean, self.const(self.w.epsilon, np.float32)))
        normed = self.add("Div", wide, root)
        return str(self.add("Mul", self.cast(normed, self.kind), self.real(self.w.arrays[name], name)))

    def heads(self, x: str, n: int) -> str:
        shaped = self.add("Reshape", x, self.const([1, -1, n, self.w.head_dim]))
        return str(self.add("Transpose", shaped, perm=[0, 2, 1, 3]))

    def feed_forward(self, x: str, layer: int) -> str:
        gate = self.multiply(x, f"blk.{layer}.ffn_gate")
        silu = self.add("Mul", gate, self.add("Sigmoid", gate))
        return self.multiply(
            str(self.add("Mul", silu, self.multiply(x, f"blk.{layer}.ffn_up"))), f"blk.{layer}.ffn_down"
        )

    def angles(self) -> Array:
        d = self.w.head_dim
        return np.asarray(self.w.base ** (-np.arange(0, d, 2) / d))
