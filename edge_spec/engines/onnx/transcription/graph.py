"""The network as an ONNX graph.

Inputs of every graph, for S tokens at once, R rows wanted and a cache of C cells::

    ids i64 [1, S]   rows i64 [R]   cos_all, sin_all f32 [C, n_rotary / 2]   and those of window and none

    per_layer f32 [1, S, numbers of all layers]   where layers take in numbers of their own, see ``per_layer.py``

    query_scales f32 [C]   where queries grow with their place

    tree i32 [P]   key_i T [n_head_kv, C / 16, head_dim, 16]   value_i T [n_head_kv, C, head_dim]

    run i64 [T]   of layers without keys and values, see ``recurrent.py``

where i counts the layers with keys and values of their own, T is f32 or f16, and ``tree`` tells which rows belong to
which texts.
Attention is ``AttendRows``, see ``edge_spec/engines/onnx/kernels/src/attention.h``; it writes new keys and values into
the cache in place.

Output: logits f32 [1, R, n_vocab]. Rows are selected before the last product: a long prompt needs one row, and the
vocabulary times the prompt would be the largest array of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_spec.engines.onnx.kernels import DOMAIN, NUMBERS
from edge_spec.engines.onnx.transcription.experts import add_experts
from edge_spec.engines.onnx.transcription.fusion import fuse
from edge_spec.engines.onnx.transcription.matrices import Array, Matrix, Weights, gather, multiply
from edge_spec.engines.onnx.transcription.network import OUTPUT_SCALE, Network, tensor_blocks, tensor_values
from edge_spec.engines.onnx.transcription.proto import FLOAT, FLOAT16, INT32, INT64, Graph
from edge_spec.engines.onnx.transcription.recurrent import State, declare

__all__ = ["ATTENTION_HEADS", "LANES", "Writer", "states_of", "sum_before"]

LANES = NUMBERS["LANES"]
"""Cells whose keys lie side by side for our attention."""

ATTENTION_HEADS = range(16, NUMBERS["MAX_HEAD_DIM"] + 1, 16)
"""Sizes of heads that our attention knows."""

QKV, GATED = ("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up")
"""Matrices of a layer that are multiplied with the same input."""

_SHARED = "_shexp"
"""How the names of a network end that all rows go through besides the experts."""

_MS = "com.microsoft"


class Writer:
    """Writes one network as one graph; matrices go to ``store``, once for all graphs that share it.

    Args:
        f16: whether its cache holds fp16.
        visible: further nodes may use what goes into each layer.
    """

    def __init__(self, network: Network, store: Weights, *, f16: bool, visible: bool = False) -> None:
        self._net = network
        self.store = store
        self._f16, self._visible = f16, visible
        self.graph = Graph()

    def write(self) -> Graph:
        """Return the whole graph."""
        net, graph = self._net, self.graph
        self._declare()
        gather(graph, self.store, matrix_of(net, "token_embd"), "ids", "x")
        x, added = "x", ""
        x = self._times(x, net.embedding_scale)
        if net.per_layer is not None:
            net.per_layer.begin(self, x)
        for layer in range(net.n_layers):
            x, added = self._layer(layer, x, added)
        normed, _ = self._norm(x, added, f"{net.kind.output_norm}.weight")
        graph.node("Gather", [normed, "rows"], ["wanted"], axis=1)
        capped = net.soft_cap != 0
        changed = capped or net.logit_scale != 1
        multiply(graph, self.store, matrix_of(net, head_of(net)), "wanted", "products" if changed else "logits")
        if changed:
            factor = self._number("products.factor", net.logit_scale / (net.soft_cap or 1))
            graph.node("Mul", ["products", factor], ["products.small" if capped else "logits"])
        if capped:
            graph.node("Tanh", ["products.small"], ["products.bounded"])
            graph.node("Mul", ["products.bounded", self._number("soft_cap", net.soft_cap)], ["logits"])
        last = f"{net.kind.output_norm}.weight.y"
        ends = {*(sum_before(layer) for layer in range(1, net.n_layers)), last, f"{last}.sum"}
        fuse(graph, ends, visible=self._visible)
        return graph

    def _declare(self) -> None:
        net, graph = self._net, self.graph
        graph.takes("ids", INT64, (1, "S"))
        graph.takes("rows", INT64, ("R",))
        for name, rotary in net.rotary.items():
            for table in ("cos", "sin"):
                graph.takes(f"{table}_{name}", FLOAT, ("C", len(rotary.frequencies)))
        if net.rotary["all"].temperature:
            graph.takes("query_scales", FLOAT, ("C",))
        graph.takes("tree", INT32, ("P",))
        cached = FLOAT16 if self._f16 else FLOAT
        for number, layer in enumerate(net.attention_layers):
            n_heads, dim = net.n_head_kv[layer], net.head_dims[layer]
            graph.takes(f"key_{number}", cached, (n_heads, "C16", dim, LANES))
            graph.takes(f"value_{number}", cached, (n_heads, "C", dim))
        if net.recurrent_layers:
            declare(graph)
        graph.gives("logits", FLOAT, (1, "R", net.n_vocab))

    def vector(self, name: str) -> str:
        """Return a small tensor as a constant."""
        return self.graph.constant(name, self.values(name).reshape(-1))

    def values(self, name: str) -> Array:
        """Return the numbers of a tensor of floats."""
        return tensor_values(self._net.tensors[name])

    def _layer(self, layer: int, x: str, added: str) -> tuple[str, str]:
        """What goes out of a layer that ``x + added`` goes into, as two names whose sum it is; the second may be
        empty."""
        normed, x = self._pre_norm(x, added, f"blk.{layer}.attn_norm.weight")
        added = self._post_norm(self._mixed(layer, normed), f"blk.{layer}.post_attention_norm.weight")
        normed, x = self._pre_norm(x, added, f"blk.{layer}.{self._net.kind.ffn_norm}.weight")
        added = self._post_norm(self._feed_forward(layer, normed), f"blk.{layer}.post_ffw_norm.weight")
        return self._layer_end(layer, x, added)

    def _norm(self, x: str, added: str, weight: str) -> tuple[str, str]:
        """Normalize ``x + added``; returns the names of the result and of the sum."""
        w, y = self.vector(weight), weight + ".y"
        if not added:
            self.graph.node(
                "SimplifiedLayerNormalization", [x, w], [y], epsilon=self._net.epsilon, axis=-1, stash_type=1
            )
            return y, x
        self.graph.node(
            "SkipSimplifiedLayerNormalization", [x, added, w], [y, "", "", y + ".sum"], _MS, epsilon=self._net.epsilon
        )
        return y, y + ".sum"

    def _pre_norm(self, x: str, added: str, weight: str) -> tuple[str, str]:
        """Like ``_norm``, but where nothing is normalized before it is read, both names are that of the sum."""
        if self._net.kind.pre_norms:
            return self._norm(x, added, weight)
        if not added:
            return x, x
        y = f"{weight}.y.sum"
        self.graph.node("Add", [x, added], [y])
        return y, y

    def _post_norm(self, x: str, weight: str) -> str:
        y = self._norm(x, "", weight)[0] if self._net.kind.post_norms else x
        return self._times(y, self._net.residual_scale)

    def _layer_end(self, layer: int, x: str, added: str) -> tuple[str, str]:
        """What goes out of a layer, as two names whose sum it is; the second may be empty."""
        net, graph, scale = self._net, self.graph, f"blk.{layer}.{OUTPUT_SCALE}"
        if net.per_layer is not None:
            graph.node("Add", [x, added], [f"blk.{layer}.whole"])
            x, added = f"blk.{layer}.whole", net.per_layer.add(self, layer, f"blk.{layer}.whole")
        if scale not in net.tensors:
            return x, added
        # Named as the sum that the next layer's norm would begin with.
        y = sum_before(layer + 1)
        graph.node("Add", [x, added], [f"{scale}.x"])
        graph.node("Mul", [f"{scale}.x", self.vector(scale)], [y])
        return y, ""

    def _number(self, name: str, value: float) -> str:
        return self.graph.constant(name, np.array(value, np.float32))

    def _times(self, x: str, factor: float) -> str:
        """``x`` times a number."""
        if factor == 1:
            return x
        y = f"{x}.times"
        self.graph.node("Mul", [x, self._number(f"{y}.factor", factor)], [y])
        return y

    def _biased(self, x: str, name: str) -> str:
        """``x`` and the bias of that name, if there is one."""
        if f"{name}.bias" not in self._net.tensors:
            return x
        self.graph.node("Add", [x, self.vector(f"{name}.bias")], [x + ".b"])
        return x + ".b"

    def products(self, x: str, names: Sequence[str], y: str) -> list[str]:
        """Products of ``x`` with several matrices, in one call where the types agree.

        Returns:
            The names of the results, or of the one array that holds them all, side by side.
        """
        together = products_of(self._net, names)
        outs = [y] if len(together) == 1 else [f"{y}.{place}" for place in range(len(together))]
        for matrix, out in zip(together, outs, strict=True):
            multiply(self.graph, self.store, matrix, x, out)
        return outs

    def _mixed(self, layer: int, x: str) -> str:
        """What a layer takes from other tokens."""
        recurrent = self._net.recurrent
        if recurrent is not None and layer in self._net.recurrent_layers:
            return recurrent.add(self, layer, sorted(self._net.recurrent_layers).index(layer), x)
        return self._attention(layer, x)

    def _attention(self, layer: int, x: str) -> str:
        net, blk = self._net, f"blk.{layer}."
        gated, dim, n_kv = net.kind.gated_attention, net.head_dims[layer], net.n_head_kv[layer]
        names = qkv_of(net, layer)
        qkv = self.products(x, [blk + part for part in names], f"{blk}qkv")
        apart = any(f"{blk}{part}.bias" in net.tensors for part in QKV) or net.query_scale(layer) != 1
        if len(qkv) == 1 and names != QKV[:1] and (net.kind.head_norms or net.kind.whole_norms or apart):
            sizes = (net.n_head * dim * (1 + gated), n_kv * dim, n_kv * dim)
            qkv = self._split(qkv[0], sizes[: 2 if names == QKV[:2] else 3])
        if len(qkv) > 1:
            qkv = [self._biased(x, blk + part) for x, part in zip(qkv, QKV, strict=False)]
        if names == QKV[:2]:
            qkv.append(qkv[1])
        gate = ""
        if gated:
            qkv[0], gate = self._without_gates(layer, qkv[0])
        if net.kind.head_norms:
            qkv[:2] = (
                self._head_norm(x, self.vector(f"{blk}{name}.weight"), n_heads, dim)
                for x, name, n_heads in zip(qkv, ("attn_q_norm", "attn_k_norm"), (net.n_head, n_kv), strict=False)
            )
        if net.kind.whole_norms:
            qkv[:2] = (
                self._norm(x, "", f"{blk}{name}.weight")[0]
                for x, name in zip(qkv, ("attn_q_norm", "attn_k_norm"), strict=False)
            )
        if net.kind.value_norms and len(qkv) > 1:
            ones = self.graph.constant(f"ones_{dim}", np.ones(dim, np.float32))
            qkv[2] = self._head_norm(qkv[2], ones, n_kv, dim)
        qkv[0] = self._times(qkv[0], net.query_scale(layer))
        attended = self._attend(layer, qkv)
        if gated:
            self.graph.node("Sigmoid", [gate], [f"{gate}.share"])
            self.graph.node("Mul", [attended, f"{gate}.share"], [f"{attended}.gated"])
            attended = f"{attended}.gated"
        self.products(attended, [blk + "attn_output"], f"{blk}attn_out")
        return self._biased(f"{blk}attn_out", f"{blk}attn_output")

    def _without_gates(self, layer: int, x: str) -> tuple[str, str]:
        """Queries, and the numbers that follow those of each head."""
        net, graph, dim = self._net, self.graph, self._net.head_dims[layer]
        pairs = graph.constant("pairs_of_heads", np.array([1, -1, net.n_head, 2 * dim], np.int64))
        flat = graph.constant(f"flat_{net.n_head}_{dim}", np.array([1, -1, net.n_head * dim], np.int64))
        graph.node("Reshape", [x, pairs], [f"{x}.pairs"])
        halves = self._split(f"{x}.pairs", (dim, dim))
        for half in halves:
            graph.node("Reshape", [half, flat], [f"{half}.flat"])
        return f"{halves[0]}.flat", f"{halves[1]}.flat"

    def _attend(self, layer: int, qkv: Sequence[str]) -> str:
        net, graph, y = self._net, self.graph, f"blk.{layer}.attn"
        number = net.attention_layers.index(net.source_of(layer))
        packed = qkv[0]
        if len(qkv) > 1:
            packed = y + ".packed"
            graph.node("Concat", qkv, [packed], axis=-1)
        rotary = net.rotary_of(layer)
        further = ["query_scales"] if net.rotary["all"].temperature else []
        if net.kind.sinks:
            further = [*(further or [""]), self.vector(f"blk.{layer}.attn_sinks.weight")]
        graph.node(
            "AttendRows",
            [packed, f"key_{number}", f"value_{number}", f"cos_{rotary}", f"sin_{rotary}", "tree", *further],
            [y],
            DOMAIN,
            n_head=net.n_head,
            n_head_kv=net.n_head_kv[layer],
            head_dim=net.head_dims[layer],
            interleaved=int(net.kind.interleaved),
            window=net.windows[layer],
            **({"unseen": net.n_unseen} if net.n_unseen else {}),
        )
        return y

    def _split(self, x: str, sizes: Sequence[int]) -> list[str]:
        outs = [f"{x}.{place}" for place in range(len(sizes))]
        self.graph.node("Split", [x, self.graph.constant(x + ".sizes", np.array(sizes, np.int64))], outs, axis=-1)
        return outs

    def _head_norm(self, x: str, weights: str, n_heads: int, dim: int) -> str:
        """Normalize rows head by head."""
        graph, y = self.graph, f"{x}.{weights}"
        heads = graph.constant(f"heads_{n_heads}_{dim}", np.array([1, -1, n_heads, dim], np.int64))
        flat = graph.constant(f"flat_{n_heads}_{dim}", np.array([1, -1, n_heads * dim], np.int64))
        graph.node("Reshape", [x, heads], [f"{y}.heads"])
        inputs, epsilon = [f"{y}.heads", weights], self._net.epsilon
        graph.node("SimplifiedLayerNormalization", inputs, [f"{y}.normed"], epsilon=epsilon, axis=-1, stash_type=1)
        graph.node("Reshape", [f"{y}.normed", flat], [f"{y}.flat"])
        return f"{y}.flat"

    def _feed_forward(self, layer: int, x: str) -> str:
        blk = f"blk.{layer}."
        return (
            self._experts(layer, x)
            if self._net.has_experts(layer)
            else self._whole_network(blk, x, gated_of(self._net), "")
        )

    def _experts(self, layer: int, x: str) -> str:
        net, graph, blk = self._net, self.graph, f"blk.{layer}."
        self.products(x, [f"{blk}ffn_gate_inp"], f"{blk}scores")
        scores = self._biased(f"{blk}scores", f"{blk}ffn_gate_inp")
        out = add_experts(graph, self.store, net, layer, x, scores)
        if not net.has_shared:
            return out
        shared = self._whole_network(blk, x, GATED, _SHARED)
        if net.has(f"{blk}ffn_gate_inp_shexp"):
            self.products(x, [f"{blk}ffn_gate_inp_shexp"], f"{blk}shared_score")
            graph.node("Sigmoid", [f"{blk}shared_score"], [f"{blk}shared_share"])
            graph.node("Mul", [shared, f"{blk}shared_share"], [f"{blk}shared"])
            shared = f"{blk}shared"
        graph.node("Add", [out, shared], [f"{blk}with_shared"])
        return f"{blk}with_shared"

    def _whole_network(self, blk: str, x: str, gated: Sequence[str], end: str) -> str:
        """What a network that all rows go through makes of them.

        Args:
            gated: its matrices for gate and up.
            end: how the names of its tensors end.
        """
        graph, gate_name, up_name, down_name = (
            self.graph,
            *(f"{blk}ffn_{side}{end}" for side in ("gate", "up", "down")),
        )
        both = self.products(x, [f"{blk}{part}{end}" for part in gated], f"{blk}ffn{end}")
        hidden = f"{blk}gate{end}"
        if self._net.kind.squared:
            graph.node("Relu", [self._biased(both[0], up_name)], [hidden])
            up = hidden
        else:
            n_ff = self._net.tensors[f"{down_name}.weight"].shape[0]
            gate, up = both if len(both) == 2 else self._split(both[0], (n_ff, n_ff))
            gate, up = self._biased(gate, gate_name), self._biased(up, up_name)
            if self._net.kind.gelu:
                graph.node("FastGelu", [gate], [hidden], _MS)
            else:
                graph.node("QuickGelu", [gate], [hidden], _MS, alpha=1.0)
        graph.node("Mul", [hidden, up], [f"{blk}gated{end}"])
        self.products(f"{blk}gated{end}", [down_name], f"{blk}down{end}")
        return self._biased(f"{blk}down{end}", down_name)


def sum_before(layer: int) -> str:
    """Return the name of what goes into a layer, as the norm that it begins with names its sum."""
    return f"blk.{layer}.attn_norm.weight.y.sum"


def qkv_of(net: Network, layer: int) -> tuple[str, ...]:
    """Return the matrices that make queries, keys and values; values may be the keys, and both those of another
    layer."""
    if net.has(f"blk.{layer}.attn_qkv"):
        return ("attn_qkv",)
    if net.source_of(layer) != layer:
        return QKV[:1]
    return QKV if net.has(f"blk.{layer}.attn_v") else QKV[:2]


def gated_of(net: Network) -> tuple[str, ...]:
    """Return the matrices that make gate and up, which may be one in the file, or up alone."""
    return ("ffn_up",) if net.kind.fused_gate or net.kind.squared else GATED


def head_of(net: Network) -> str:
    """Return the matrix that makes logits, which may be that of the embeddings."""
    return "output" if net.has("output") else "token_embd"


def matrix_of(net: Network, *names: str) -> Matrix:
    """Return the matrices of these names, which are of one type, as one."""
    tensors = [net.tensors[name + ".weight"] for name in names]
    return Matrix(
        name="+".join(names),
        kind=tensors[0].type_name,
        n_out=sum(tensor.n_elements // tensor.shape[0] for tensor in tensors),
        n_in=tensors[0].shape[0],
        parts=lambda: [tensor_blocks(tensor) for tensor in tensors],
    )


def products_of(net: Network, names: Sequence[str]) -> list[Matrix]:
    """Return all these matrices as one if they are of one type, else each of them."""
    kinds = {net.tensors[name + ".weight"].type_name for name in names}
    return [matrix_of(net, *names)] if len(kinds) == 1 else [matrix_of(net, name) for name in names]


def states_of(net: Network) -> list[State]:
    """Return the states of a layer without keys and values."""
    return net.recurrent.states() if net.recurrent is not None else []
