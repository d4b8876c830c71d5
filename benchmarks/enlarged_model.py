"""A small model in a large shape that computes the same function: large cost, and the small model's text.

The width is padded with zeros. Weights of norms shrink by the root of d/D and their epsilon by d/D, which cancels the
effect of the zeros on the mean square. Heads stay in their groups; where the shape has smaller groups, keys and values
are there several times. Additional heads and layers add nothing. A head on the small model's hidden states is padded in
the same way, so acceptance stays as well.

Usage: python enlarged_model.py SMALL.gguf BIG.gguf [--shape llama-1.7b] [--head HEAD.gguf BIG-HEAD.gguf]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, ReaderTensor
from model_shapes import SHAPES, Shape, add_sizes, finish

from edge_spec.models import inspect
from edge_spec.models.gguf.trimmed import TARGET_TOKENS
from edge_spec.models.made_for import add_target

__all__ = ["write_enlarged", "write_enlarged_head"]

_BLOCK = 32
_ZERO_BYTES = {"Q4_0": 0x88, "Q4_1": 0, "Q8_0": 0}
"""The codes of a block of zeros, by type; its scale is 0."""
_HEAD = "eagle3"

Places = npt.NDArray[np.intp]


def write_enlarged(path: Path, source: Path, shape: Shape = SHAPES["llama-1b"], *, n_ctx_train: int = 32768) -> Path:
    """Write the llama model ``source``, which has tied embeddings, with the width, depth and heads of ``shape``.

    Raises:
        ValueError: the shape is too small, or its attention heads have another size.
    """
    reader = GGUFReader(source)
    small = _shape_of(reader)
    heads = _Heads.between(small, shape)
    writer = GGUFWriter(path, "llama")
    _copy_fields(writer, reader, but=("llama.", "general.architecture"))
    _add_shape(writer, reader, shape, small, n_ctx_train)
    wide = _Wide(writer, {tensor.name: tensor for tensor in reader.tensors}, small.n_embd, shape.n_embd)
    wide.matrix("token_embd.weight", shape.n_embd, small.n_vocab)
    wide.norm("output_norm.weight")
    for layer in range(shape.n_layers):
        wide.norm(f"blk.{layer}.attn_norm.weight")
        _add_layer(wide, f"blk.{layer}.", shape, heads, shape.n_embd)
    finish(writer)
    return path


def write_enlarged_head(path: Path, source: Path, target: Path, layer: Shape) -> Path:
    """Write the head ``source`` for a target that ``write_enlarged`` has written.

    Its fusion matrix has columns of zeros where the target's hidden states have zeros.

    Args:
        layer: the shape of its layer; the width is the target's.

    Raises:
        ValueError: the shape is too small, or its attention heads have another size.
    """
    reader = GGUFReader(source)
    small = _shape_of(reader)
    heads = _Heads.between(small, layer)
    writer = GGUFWriter(path, _HEAD)
    _copy_fields(writer, reader, but=(f"{_HEAD}.", "general.architecture", "edge_spec."))
    _add_shape(writer, reader, replace(layer, n_layers=1), small, reader.fields[f"{_HEAD}.context_length"].contents())
    writer.add_array(f"{_HEAD}.target_layers", reader.fields[f"{_HEAD}.target_layers"].contents())
    writer.add_uint32(f"{_HEAD}.target_hidden_size", layer.n_embd)
    add_target(writer, reader.fields[TARGET_TOKENS].contents(), inspect(target))
    wide = _Wide(writer, {tensor.name: tensor for tensor in reader.tensors}, small.n_embd, layer.n_embd)
    wide.matrix("fc.weight", 3 * layer.n_embd, layer.n_embd, columns=wide.side_by_side(3))
    for name in ("blk.0.attn_norm", "blk.0.attn_norm_2", "output_norm"):
        wide.norm(f"{name}.weight")
    _add_layer(wide, "blk.0.", layer, heads, 2 * layer.n_embd)
    finish(writer)
    return path


def _shape_of(reader: GGUFReader) -> Shape:
    arch = reader.fields["general.architecture"].contents()

    def field(name: str) -> int:
        return int(reader.fields[f"{arch}.{name}"].contents())

    d, n_head = field("embedding_length"), field("attention.head_count")
    return Shape(
        architecture=arch,
        n_layers=field("block_count"),
        n_embd=d,
        n_ff=field("feed_forward_length"),
        n_head=n_head,
        n_head_kv=field("attention.head_count_kv"),
        head_dim=d // n_head,
        n_vocab=field("vocab_size"),
    )


def _copy_fields(writer: GGUFWriter, reader: GGUFReader, *, but: tuple[str, ...]) -> None:
    for key, value in reader.fields.items():
        if not key.startswith(("GGUF.", *but)):
            kind = value.types[0]
            sub = value.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(key, value.contents(), kind, sub_type=sub)


def _add_shape(writer: GGUFWriter, reader: GGUFReader, shape: Shape, small: Shape, n_ctx_train: int) -> None:
    def field(name: str) -> Any:
        return reader.fields[f"{small.architecture}.{name}"].contents()

    add_sizes(writer, shape, n_ctx_train)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(field("attention.layer_norm_rms_epsilon") * small.n_embd / shape.n_embd)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(field("rope.freq_base"))
    writer.add_vocab_size(small.n_vocab)


@dataclass(frozen=True, kw_only=True)
class _Heads:
    """Where heads of the small shape are in the large one, as places of their rows.

    Attributes:
        queries: places of the rows of queries.
        keys: places of the rows of keys and values; ``copied`` says which row of the small model each is.
    """

    queries: Places
    keys: Places
    copied: Places

    @classmethod
    def between(cls, small: Shape, large: Shape) -> _Heads:
        group, wide_group = small.n_head // small.n_head_kv, large.n_head // large.n_head_kv
        copies = -(-group // wide_group)
        n_keys = copies * small.n_head_kv
        if (
            small.head_dim != large.head_dim
            or n_keys > large.n_head_kv
            or small.n_layers > large.n_layers
            or small.n_embd > large.n_embd
            or small.n_ff > large.n_ff
        ):
            raise ValueError(f"{small} does not fit into {large}")
        key_of = [head // group * copies + head % group // wide_group for head in range(small.n_head)]
        queries = [key * wide_group + head % group % wide_group for head, key in enumerate(key_of)]
        rows = [_rows(each, small.head_dim) for each in (queries, range(n_keys))]
        return cls(
            queries=rows[0], keys=rows[1], copied=_rows([key // copies for key in range(n_keys)], small.head_dim)
        )


def _rows(heads: Sequence[int], head_dim: int) -> Places:
    return np.concatenate([np.arange(head_dim) + head * head_dim for head in heads])


class _Wide:
    """Writes tensors in a large shape, with zeros around what the small model has.

    Args:
        known: the small model's tensors.
        d, width: of the small model and of the large one.
    """

    def __init__(self, writer: GGUFWriter, known: Mapping[str, ReaderTensor], d: int, width: int) -> None:
        self._writer = writer
        self._known = known
        self._d = d
        self.width = width

    def side_by_side(self, n: int) -> Places:
        """Places of the inputs of a matrix that reads ``n`` rows of the model's width side by side."""
        return np.concatenate([np.arange(self._d) + part * self.width for part in range(n)])

    def norm(self, name: str) -> None:
        weights = np.zeros(self.width, np.float32)
        if name in self._known:
            weights[: self._d] = self._known[name].data * np.sqrt(self._d / self.width)
        self._writer.add_tensor(name, weights)

    def matrix(
        self,
        name: str,
        n_in: int,
        n_out: int,
        *,
        rows: Places | None = None,
        copied: Places | None = None,
        columns: Places | None = None,
    ) -> None:
        """``rows`` and ``columns``: where outputs and inputs are, by default the first; ``copied``: whose rows."""
        tensor = self._known.get(name)
        kind = "Q4_0" if tensor is None else tensor.tensor_type.name
        n_weights, n_bytes = gguf.constants.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        assert n_weights == _BLOCK
        wide = np.full((n_out, n_in // _BLOCK, n_bytes), _ZERO_BYTES[kind], np.uint8)
        wide[..., :2] = 0
        if tensor is not None:
            blocks = tensor.data.reshape(tensor.data.shape[0], -1, n_bytes)
            blocks = blocks if copied is None else blocks[copied]
            first = np.arange(blocks.shape[1]) if columns is None else columns[::_BLOCK] // _BLOCK
            wide[np.ix_(np.arange(len(blocks)) if rows is None else rows, first)] = blocks
        self._writer.add_tensor(name, wide.reshape(n_out, -1), raw_dtype=GGMLQuantizationType[kind])


def _add_layer(wide: _Wide, blk: str, shape: Shape, heads: _Heads, n_in: int) -> None:
    """Everything of a layer but the norm before its attention, which reads ``n_in`` numbers."""
    width, n_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    columns = wide.side_by_side(n_in // shape.n_embd)
    wide.norm(f"{blk}ffn_norm.weight")
    wide.matrix(f"{blk}attn_q.weight", n_in, width, rows=heads.queries, columns=columns)
    for name in ("attn_k", "attn_v"):
        wide.matrix(f"{blk}{name}.weight", n_in, n_kv, rows=heads.keys, copied=heads.copied, columns=columns)
    wide.matrix(f"{blk}attn_output.weight", width, shape.n_embd, columns=heads.queries)
    wide.matrix(f"{blk}ffn_gate.weight", shape.n_embd, shape.n_ff)
    wide.matrix(f"{blk}ffn_up.weight", shape.n_embd, shape.n_ff)
    wide.matrix(f"{blk}ffn_down.weight", shape.n_ff, shape.n_embd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("small", type=Path)
    parser.add_argument("big", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-1.7b")
    parser.add_argument("--head", type=Path, nargs=2, metavar=("HEAD", "BIG_HEAD"))
    asked = parser.parse_args()
    shape = SHAPES[asked.shape]
    written = [write_enlarged(asked.big, asked.small, shape, n_ctx_train=inspect(asked.small).n_ctx_train)]
    if asked.head is not None:
        head, big_head = asked.head
        written.append(write_enlarged_head(big_head, head, asked.big, shape))
    for path in written:
        print(f"{path}: {inspect(path).n_params / 1e6:,.1f} million weights, {path.stat().st_size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
