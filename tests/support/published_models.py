"""Folders as hubs publish ONNX models, made of a GGUF's weights: the signatures of two exporters.

``plain``: standard operators, keys and values joined with those of the past, as transformers exports look.
``genai``: ``GroupQueryAttention`` and ``MatMulNBits``, as the builder of ONNX Runtime GenAI writes them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import onnx
from gguf import GGMLQuantizationType
from onnx import TensorProto, helper, numpy_helper

from edge_spec.engines.onnx.transcription.network import tensor_blocks
from edge_spec.models import inspect, read_header

Array = npt.NDArray[Any]
KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


@dataclass(frozen=True)
class Weights:
    """A llama, as numbers: queries and keys in the order of transformers, which turn numbers half a head apart."""

    path: Path
    arrays: dict[str, Array]
    n_layers: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    epsilon: float
    base: float


def read_weights(path: Path) -> Weights:
    """The weights of a GGUF of the architecture ``llama``."""
    file, header = inspect(path), read_header(path)
    arrays = {}
    for tensor in header.tensors:
        raw = np.asarray(tensor_blocks(header, tensor))
        values = gguf.quants.dequantize(raw, GGMLQuantizationType[tensor.type_name]).astype(np.float32)
        arrays[tensor.name.removesuffix(".weight")] = values.reshape(tensor.shape[::-1])
    for layer in range(file.n_layers):
        for name in ("attn_q", "attn_k"):
            rows = arrays[f"blk.{layer}.{name}"]
            pairs = rows.reshape(-1, file.head_dim_k // 2, 2, rows.shape[-1])
            arrays[f"blk.{layer}.{name}"] = pairs.swapaxes(1, 2).reshape(rows.shape)
    arrays.setdefault("output", arrays["token_embd"])
    return Weights(
        path,
        arrays,
        file.n_layers,
        file.n_head,
        file.n_head_kv[0],
        file.head_dim_k,
        file.n_vocab,
        float(header.metadata["llama.attention.layer_norm_rms_epsilon"]),  # type: ignore[arg-type]
        float(header.metadata["llama.rope.freq_base"]),  # type: ignore[arg-type]
    )


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


def publish(
    folder: Path,
    weights: Weights,
    style: str,
    kind: str = "float32",
    *,
    four_bits: bool = False,
    name: str = "model.onnx",
    mask_dims: int = 2,
    keep: bool = False,
    last_only: bool = False,
    logits_kind: str | None = None,
    extra_input: str = "",
    settings: bool = True,
) -> Path:
    """Write a folder; returns the path of its graph."""
    g = Graph(weights, kind, four_bits=four_bits)
    net = _plain(g, mask_dims) if style == "plain" else _genai(g)
    hidden = net.hidden
    if keep or last_only:
        n = "num_logits_to_keep" if keep else g.const(1)
        start = g.add("Neg", g.add("Reshape", n, g.const([1])))
        hidden = g.add("Slice", hidden, start, g.const([2**62]), g.const([1]))
    logits = g.multiply(hidden, "output")
    if (logits_kind or kind) != kind:
        logits = g.cast(logits, logits_kind or kind)
    g.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    whole = TensorProto.INT64
    inputs = [helper.make_tensor_value_info("input_ids", whole, ["batch_size", "sequence_length"])]
    if mask_dims == 2:
        shape: list[Any] = ["batch_size", "total_sequence_length"]
        inputs.append(helper.make_tensor_value_info("attention_mask", whole, shape))
    else:
        shape = ["batch_size", 1, "sequence_length", "total_sequence_length"]
        inputs.append(helper.make_tensor_value_info("attention_mask", KINDS[kind], shape))
    if style == "plain":
        inputs.append(helper.make_tensor_value_info("position_ids", whole, ["batch_size", "sequence_length"]))
    if keep:
        inputs.append(helper.make_tensor_value_info("num_logits_to_keep", whole, []))
    if extra_input:
        inputs.append(helper.make_tensor_value_info(extra_input, whole, ["batch_size"]))
    rows = 1 if last_only else "sequence_length"
    outputs = [
        helper.make_tensor_value_info("logits", KINDS[logits_kind or kind], ["batch_size", rows, weights.n_vocab])
    ]
    for layer in range(weights.n_layers):
        for part in ("key", "value"):
            cells = ["batch_size", weights.n_head_kv, "past_sequence_length", weights.head_dim]
            inputs.append(helper.make_tensor_value_info(f"past_key_values.{layer}.{part}", KINDS[kind], cells))
            cells = ["batch_size", weights.n_head_kv, "total_sequence_length", weights.head_dim]
            outputs.append(helper.make_tensor_value_info(f"present.{layer}.{part}", KINDS[kind], cells))
    graph = helper.make_graph(g.nodes, "main_graph", inputs, outputs, list(g.constants.values()))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model) if style == "plain" and not four_bits else None
    where = folder / "onnx" if style == "plain" else folder
    where.mkdir(parents=True, exist_ok=True)
    data = name + ("_data" if style == "plain" else ".data")
    onnx.save_model(
        model, where / name, save_as_external_data=True, location=data, size_threshold=1024, convert_attribute=False
    )
    if settings:
        write_settings(folder, weights, style, name)
    return where / name


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


def _plain(g: Graph, mask_dims: int) -> Net:
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


def _genai(g: Graph) -> Net:
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


def write_settings(folder: Path, weights: Weights, style: str, name: str = "model.onnx") -> None:
    """The files beside the graph, as the two kinds of folders have them."""
    file, metadata = inspect(weights.path), read_header(weights.path).metadata
    tokens = [str(text) for text in _texts(metadata, "tokenizer.ggml.tokens")]
    merges = [str(text) for text in _texts(metadata, "tokenizer.ggml.merges")]
    special = [n for n, kind in enumerate(_texts(metadata, "tokenizer.ggml.token_type")) if kind == 3]
    bos, eos = int(metadata["tokenizer.ggml.bos_token_id"]), int(metadata["tokenizer.ggml.eos_token_id"])  # type: ignore[arg-type]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    _dump(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "normalizer": None,
            "post_processor": None,
            "added_tokens": [
                {
                    "id": n,
                    "content": tokens[n],
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for n in special
            ],
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": {text: n for n, text in enumerate(tokens)},
                "merges": merges,
            },
        },
    )
    _dump(
        folder / "config.json",
        {
            "model_type": "llama",
            "hidden_size": file.n_embd,
            "num_attention_heads": file.n_head,
            "num_key_value_heads": file.n_head_kv[0],
            "num_hidden_layers": file.n_layers,
            "vocab_size": file.n_vocab,
            "max_position_embeddings": file.n_ctx_train,
            "bos_token_id": bos,
            "eos_token_id": eos,
        },
    )
    _dump(folder / "generation_config.json", {"bos_token_id": bos, "eos_token_id": [eos, 0]})
    tokenizer = {"bos_token": tokens[bos], "eos_token": {"content": tokens[eos]}}
    if style == "plain":
        tokenizer["chat_template"] = str(file.chat_template)
    else:
        (folder / "chat_template.jinja").write_text(str(file.chat_template), "utf-8")
        past = {f"past_{part}_names": f"past_key_values.%d.{part}" for part in ("key", "value")}
        present = {f"present_{part}_names": f"present.%d.{part}" for part in ("key", "value")}
        _dump(
            folder / "genai_config.json",
            {
                "model": {
                    "type": "llama",
                    "context_length": file.n_ctx_train,
                    "vocab_size": file.n_vocab,
                    "bos_token_id": bos,
                    "eos_token_id": [eos, 0],
                    "pad_token_id": 0,
                    "decoder": {
                        "filename": name,
                        "head_size": file.head_dim_k,
                        "hidden_size": file.n_embd,
                        "num_attention_heads": file.n_head,
                        "num_key_value_heads": file.n_head_kv[0],
                        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **past},
                        "outputs": {"logits": "logits", **present},
                    },
                },
                "search": {"past_present_share_buffer": True},
            },
        )
    _dump(folder / "tokenizer_config.json", tokenizer)


def _texts(metadata: Any, key: str) -> Sequence[Any]:
    found: Sequence[Any] = metadata[key].decode()
    return found


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), "utf-8")
