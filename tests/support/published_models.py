"""Folders as hubs publish ONNX models, made of a GGUF's weights: the signatures of two exporters.

``plain``: standard operators, keys and values joined with those of the past, as transformers exports look.
``genai``: ``GroupQueryAttention`` and ``MatMulNBits``, as the builder of ONNX Runtime GenAI writes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper
from onnx_graph import KINDS, Graph
from published_layers import genai, plain
from published_settings import write_settings
from published_weights import Weights

_INT64 = TensorProto.INT64
_LENGTHS = ("past_sequence_length", "total_sequence_length")

_Port = tuple[str, Any, list[Any]]
"""Name, type of numbers, and shape."""


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
    """Write a folder.

    Args:
        style: ``plain`` or ``genai``.
        kind: the type of numbers in caches and, but for logits, in the graph.
        mask_dims: 2 for a mask of cells, 4 for one that is added to scores.
        keep: the graph takes how many logits rows it shall compute.
        last_only: the graph computes the last row of logits only.
        logits_kind: the type of logits, ``kind`` if None.
        extra_input: a further input that we know nothing of.
        settings: write the files beside the graph as well.

    Returns:
        The path of the graph.
    """
    g = Graph(weights, kind, four_bits=four_bits)
    net = plain(g, mask_dims) if style == "plain" else genai(g)
    hidden = net.hidden
    if keep or last_only:
        n = "num_logits_to_keep" if keep else g.const(1)
        start = g.add("Neg", g.add("Reshape", n, g.const([1])))
        hidden = g.add("Slice", hidden, start, g.const([2**62]), g.const([1]))
    logits = g.multiply(hidden, "output")
    if (logits_kind or kind) != kind:
        logits = g.cast(logits, logits_kind or kind)
    g.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    inputs = _inputs(style, kind, mask_dims=mask_dims, keep=keep, extra_input=extra_input)
    rows = 1 if last_only else "sequence_length"
    outputs: list[_Port] = [("logits", KINDS[logits_kind or kind], ["batch_size", rows, weights.n_vocab])]
    for layer, part in itertools.product(range(weights.n_layers), ("key", "value")):
        past, total = (["batch_size", weights.n_head_kv, n, weights.head_dim] for n in _LENGTHS)
        inputs.append((f"past_key_values.{layer}.{part}", KINDS[kind], past))
        outputs.append((f"present.{layer}.{part}", KINDS[kind], total))
    model = _model(g, inputs, outputs)
    if style == "plain" and not four_bits:
        onnx.checker.check_model(model)
    path = (folder / "onnx" if style == "plain" else folder) / name
    _save(model, path, name + ("_data" if style == "plain" else ".data"))
    if settings:
        write_settings(folder, weights, style, name)
    return path


def _inputs(style: str, kind: str, *, mask_dims: int, keep: bool, extra_input: str) -> list[_Port]:
    """Return what a graph is given besides keys and values."""
    mask = ("attention_mask", _INT64, ["batch_size", "total_sequence_length"])
    if mask_dims == 4:
        mask = ("attention_mask", KINDS[kind], ["batch_size", 1, "sequence_length", "total_sequence_length"])
    inputs: list[_Port] = [("input_ids", _INT64, ["batch_size", "sequence_length"]), mask]
    if style == "plain":
        inputs.append(("position_ids", _INT64, ["batch_size", "sequence_length"]))
    if keep:
        inputs.append(("num_logits_to_keep", _INT64, []))
    if extra_input:
        inputs.append((extra_input, _INT64, ["batch_size"]))
    return inputs


def _model(g: Graph, inputs: Sequence[_Port], outputs: Sequence[_Port]) -> onnx.ModelProto:
    taken, given = ([helper.make_tensor_value_info(*port) for port in ports] for ports in (inputs, outputs))
    graph = helper.make_graph(g.nodes, "main_graph", taken, given, list(g.constants.values()))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _save(model: onnx.ModelProto, path: Path, data: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(
        model, path, save_as_external_data=True, location=data, size_threshold=1024, convert_attribute=False
    )
