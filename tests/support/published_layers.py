"""The layers of a llama as two exporters write them: with standard operators, and with those of GenAI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx_graph import Graph


@dataclass
class Net:
    hidden: str


def _layers(g: Graph, ids: str, attend: Any) -> Net:
    x = g.embed(ids)
    for layer in range(g.w.n_layers):
        blk = f"blk.{layer}."
        normed = g.norm(x, blk + "attn_norm")
        q, k, v = (g.multiply(normed, blk + part) for part in ("attn_q", "attn_k", "attn_v"))
        x = g.add("Add", x, g.multiply(attend(layer, q, k, v), blk + "attn_output"))
        x = g.add("Add", x, g.feed_forward(g.norm(x, blk + "ffn_norm"), layer))
    return Net(g.norm(x, "output_norm"))


def plain(g: Graph, mask_dims: int) -> Net:
    w = g.w
    place = g.add("Cast", "position_ids", to=TensorProto.FLOAT)
    half = g.add("Mul", g.add("Unsqueeze", place, g.const([-1])), g.const(g.angles(), np.float32))
    angles = g.add("Unsqueeze", g.add("Concat", half, half, axis=-1), g.const([1]))
    cos, sin = (g.cast(g.add(name, angles), g.kind) for name in ("Cos", "Sin"))
    bias = "attention_mask"
    if mask_dims == 2:
        total = g.add("Gather", g.add("Shape", "attention_mask"), g.const(1))
        n = g.add("Gather", g.add("Shape", "input_ids"), g.const(1))
        cells = g.add("Range", g.const(0), total, g.const(1))
        rows = g.add("Unsqueeze", g.add("Range", g.add("Sub", total, n), total, g.const(1)), g.const([-1]))
        seen = g.add("And", g.add("LessOrEqual", cells, rows), g.add("Cast", "attention_mask", to=TensorProto.BOOL))
        lowest = np.finfo(g.kind).min
        bias = g.add("Where", g.add("Unsqueeze", seen, g.const([0, 1])), g.real(0), g.real(lowest))

    def turned(x: str) -> str:
        first, second = g.add("Split", x, g.const([w.head_dim // 2] * 2), n=2, axis=-1)
        other = g.add("Concat", g.add("Neg", second), first, axis=-1)
        return str(g.add("Add", g.add("Mul", x, cos), g.add("Mul", other, sin)))

    def repeated(x: str) -> str:
        times = w.n_head // w.n_head_kv
        wide = g.add("Expand", g.add("Unsqueeze", x, g.const([2])), g.const([1, 1, times, 1, 1]))
        return str(g.add("Reshape", wide, g.const([1, w.n_head, -1, w.head_dim])))

    def attend(layer: int, q: str, k: str, v: str) -> str:
        q, k, v = turned(g.heads(q, w.n_head)), turned(g.heads(k, w.n_head_kv)), g.heads(v, w.n_head_kv)
        joined = []
        for part, new in (("key", k), ("value", v)):
            present = f"present.{layer}.{part}"
            past = f"past_key_values.{layer}.{part}"
            g.nodes.append(helper.make_node("Concat", [past, new], [present], axis=2))
            joined.append(repeated(present))
        scores = g.add("MatMul", q, g.add("Transpose", joined[0], perm=[0, 1, 3, 2]))
        scaled = g.add("Mul", scores, g.real(w.head_dim**-0.5))
        weights = g.add("Softmax", g.add("Add", scaled, bias), axis=-1)
        rows = g.add("Transpose", g.add("MatMul", weights, joined[1]), perm=[0, 2, 1, 3])
        return str(g.add("Reshape", rows, g.const([1, -1, w.n_head * w.head_dim])))

    return _layers(g, "input_ids", attend)


def genai(g: Graph) -> Net:
    w = g.w
    n_seen = g.add("ReduceSum", "attention_mask", g.const([1]), keepdims=0)
    last = g.add("Cast", g.add("Sub", n_seen, g.const([1])), to=TensorProto.INT32)
    total = g.add("Gather", g.add("Shape", "attention_mask"), g.const(1))
    total = g.add("Cast", total, to=TensorProto.INT32)
    angles = np.arange(1024)[:, None] * g.angles()
    cos, sin = g.real(np.cos(angles), "cos_cache"), g.real(np.sin(angles), "sin_cache")

    def attend(layer: int, q: str, k: str, v: str) -> str:
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        out = f"attended.{layer}"
        g.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [q, k, v, *past, last, total, cos, sin],
                [out, f"present.{layer}.key", f"present.{layer}.value"],
                domain="com.microsoft",
                num_heads=w.n_head,
                kv_num_heads=w.n_head_kv,
                do_rotary=1,
                rotary_interleaved=0,
            )
        )
        return out

    return _layers(g, "input_ids", attend)
