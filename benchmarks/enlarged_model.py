"""A small model in a large shape that computes the same function: large cost, and the small model's acceptance.

The width is padded with zeros. Weights of norms shrink by the root of d/D and their epsilon by d/D, which cancels the
effect of the zeros on the mean square. Heads stay in their groups, and additional layers add nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, ReaderTensor
from model_shapes import SHAPES, Shape, add_sizes, finish

__all__ = ["write_enlarged"]

_ZERO_BYTE = {"Q4_0": 0x88, "Q8_0": 0}
"""The codes of a block of zeros; its scale is 0."""


def write_enlarged(path: Path, source: Path, shape: Shape = SHAPES["llama-1b"], *, n_ctx_train: int = 32768) -> Path:
    """Write the llama model ``source``, which has tied embeddings, with the width, depth and heads of ``shape``.

    Raises:
        ValueError: heads have another size, or the shape has too few.
    """
    reader = GGUFReader(source)

    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    d, n_head, n_head_kv = (field(n) for n in ("embedding_length", "attention.head_count", "attention.head_count_kv"))
    group, wide_group = n_head // n_head_kv, shape.n_head // shape.n_head_kv
    if d // n_head != shape.head_dim or group > wide_group or n_head_kv > shape.n_head_kv or d > shape.n_embd:
        raise ValueError(f"{source} does not fit into {shape}")
    writer = GGUFWriter(path, "llama")
    for key, value in reader.fields.items():
        if not key.startswith(("GGUF.", "llama.")) and key != "general.architecture":
            kind = value.types[0]
            sub = value.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(key, value.contents(), kind, sub_type=sub)
    add_sizes(writer, shape, n_ctx_train)
    writer.add_layer_norm_rms_eps(field("attention.layer_norm_rms_epsilon") * d / shape.n_embd)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(field("rope.freq_base"))
    writer.add_vocab_size(field("vocab_size"))
    heads = [head // group * wide_group + head % group for head in range(n_head)]
    _add_tensors(writer, {tensor.name: tensor for tensor in reader.tensors}, shape, heads, d, field("vocab_size"))
    finish(writer)
    return path


def _add_tensors(
    writer: GGUFWriter, known: Mapping[str, ReaderTensor], shape: Shape, heads: list[int], d: int, n_vocab: int
) -> None:
    """All tensors of ``shape``; those in ``known`` keep their values in the first ``d`` numbers and in ``heads``."""

    def norm(name: str) -> None:
        wide = np.zeros(shape.n_embd, np.float32)
        if name in known:
            wide[:d] = known[name].data * np.sqrt(d / shape.n_embd)
        writer.add_tensor(name, wide)

    def matrix(name: str, n_in: int, n_out: int, *, rows: Any = None, columns: Any = None) -> None:
        """``rows`` and ``columns``: the heads to which outputs and inputs belong; None for the first ones."""
        tensor = known.get(name)
        kind = "Q4_0" if tensor is None else tensor.tensor_type.name
        n_weights, n_bytes = gguf.constants.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        wide = np.full((n_out, n_in // n_weights, n_bytes), _ZERO_BYTE[kind], np.uint8)
        wide[..., :2] = 0
        if tensor is not None:
            blocks = tensor.data.reshape(tensor.data.shape[0], -1, n_bytes)
            places = [_places(rows, blocks.shape[0]), _places(columns, blocks.shape[1])]
            wide[np.ix_(*places)] = blocks
        writer.add_tensor(name, wide.reshape(n_out, -1), raw_dtype=GGMLQuantizationType[kind])

    width, n_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    matrix("token_embd.weight", shape.n_embd, n_vocab)
    norm("output_norm.weight")
    for layer in range(shape.n_layers):
        blk = f"blk.{layer}."
        norm(f"{blk}attn_norm.weight")
        norm(f"{blk}ffn_norm.weight")
        matrix(f"{blk}attn_q.weight", shape.n_embd, width, rows=heads)
        matrix(f"{blk}attn_k.weight", shape.n_embd, n_kv)
        matrix(f"{blk}attn_v.weight", shape.n_embd, n_kv)
        matrix(f"{blk}attn_output.weight", width, shape.n_embd, columns=heads)
        matrix(f"{blk}ffn_gate.weight", shape.n_embd, shape.n_ff)
        matrix(f"{blk}ffn_up.weight", shape.n_embd, shape.n_ff)
        matrix(f"{blk}ffn_down.weight", shape.n_ff, shape.n_embd)


def _places(heads: list[int] | None, n: int) -> npt.NDArray[np.intp]:
    if heads is None:
        return np.arange(n)
    per_head = n // len(heads)
    return np.concatenate([np.arange(per_head) + head * per_head for head in heads])
