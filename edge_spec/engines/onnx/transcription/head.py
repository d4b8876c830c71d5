"""A head on a target's hidden states (EAGLE-3, arXiv 2503.01840), as two pieces of graph.

One is added to the target's own graph: what goes into three of its layers, through one matrix, is a token's *feature*.
The other is the head: a layer that reads a token's embedding and the feature of the token before it. Inputs and outputs
are those of other graphs (see ``graph.py``), and besides them, a row for every token::

    feature f32 [1, S, width]   (in)      hidden f32 [1, S, width]   (out: the feature of a token that is only drafted)

The file holds no rows of the target's vocabulary. Those of the tokens that the head knows are copied from the target,
rounded to 4 bits, which no text depends on; a row of zeros stands for all other tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels import packed_bytes
from edge_spec.engines.onnx.transcription.architecture import ARCHITECTURES
from edge_spec.engines.onnx.transcription.cache import Transcription
from edge_spec.engines.onnx.transcription.graph import Writer, matrix_of
from edge_spec.engines.onnx.transcription.matrices import Array, Matrix, gather, multiply
from edge_spec.engines.onnx.transcription.network import Network, number, read_rotary, tensor_blocks
from edge_spec.engines.onnx.transcription.proto import FLOAT, Graph
from edge_spec.errors import Sentence, UnsupportedModel
from edge_spec.models import ModelFile, read_header
from edge_spec.models.gguf.header import GGUFHeader, TensorInfo
from edge_spec.models.heads import head_layers

__all__ = ["FEATURE", "HIDDEN", "Head", "head_bytes", "hidden_rows_tail", "transcribe_head"]

FEATURE, HIDDEN = "feature", "hidden"

_TABLE = "Q4_0"
"""The type that the target's rows are rounded to."""

_DIGEST_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Head(Transcription):
    """A head as ONNX Runtime reads it, with the target's rows in it.

    Its graphs are kept in ``folder``, that of the target's transcription: to round the target's rows takes as long as
    the start of a program may.

    Attributes:
        name: of its graphs; changes with the head's file.
        network: of the head.
        tables: returns the embeddings and output rows of the tokens that it knows.
        tail: what is added to the target's graph; its output is ``FEATURE``.
        width: of a feature.
    """

    name: str
    network: Network
    tables: Callable[[], tuple[Matrix, Matrix]]
    tail: bytes
    width: int

    def graph(self, *, f16: bool) -> bytes:
        path = self.folder / f"{self.name}-{'half' if f16 else 'model'}.onnx"
        graph = _kept(path)
        if graph is None:
            graph = _HeadWriter(self.network, self.tables(), f16=f16).write().serialize()
            _keep(path, graph)
        return graph


def transcribe_head(file: ModelFile, target: ModelFile, folder: Path) -> Head:
    """Return a head for its target.

    Args:
        folder: of the target's transcription.

    Raises:
        UnsupportedModel: it belongs to another model, or lacks something. ``Head.graph`` does if rows of the target
            cannot be copied.
    """
    layers = head_layers(file, target)
    header = read_header(file.path)
    network = _network(file, header)
    return Head(
        folder=folder,
        name=f"head-{file.fingerprint}",
        heads=((network.n_head_kv[0], network.head_dims[0]),),
        n_vocab=network.n_vocab,
        rotary=network.rotary,
        layer_rotary=("all",),
        interleaved=network.kind.interleaved,
        network=network,
        tables=lambda: _tables(file, target),
        tail=_feature_tail(network, layers),
        width=network.n_embd,
    )


def _kept(path: Path) -> bytes | None:
    """Return a graph that was kept; None if there is none, or it is damaged."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    graph = found[_DIGEST_BYTES:]
    return graph if _digest(graph) == found[:_DIGEST_BYTES] else None


def _keep(path: Path, graph: bytes) -> None:
    """Keep a graph, whole or not at all; a folder that cannot be written is no reason to fail."""
    with suppress(OSError):
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(_digest(graph) + graph)
        Path(part.name).replace(path)


def _digest(graph: bytes) -> bytes:
    return blake2b(graph, digest_size=_DIGEST_BYTES).digest()


def hidden_rows_tail(layers: Sequence[int], width: int) -> bytes:
    """Return what is added to a graph so that it gives what goes into some layers, side by side: its output ``HIDDEN``.

    Args:
        layers: numbers from 1 on.
        width: of the model.
    """
    graph = _side_by_side(layers)
    graph.gives(HIDDEN, FLOAT, (1, "S", len(layers) * width))
    return graph.serialize()


def head_bytes(file: ModelFile) -> int:
    """Return what a head's weights take, with the target's rows."""
    own = sum(tensor.n_bytes for tensor in file.tensors)
    return own + packed_bytes(_TABLE, file.n_vocab, file.n_embd)


def _side_by_side(layers: Sequence[int]) -> Graph:
    """What goes into some layers, where the target's graph has it: the sum that the first norm of each begins with."""
    graph = Graph()
    graph.node("Concat", [f"blk.{layer}.attn_norm.weight.y.sum" for layer in layers], [HIDDEN], axis=-1)
    return graph


def _feature_tail(network: Network, layers: Sequence[int]) -> bytes:
    graph = _side_by_side(layers)
    multiply(graph, _Inline(), matrix_of(network, "fc"), HIDDEN, FEATURE)
    graph.gives(FEATURE, FLOAT, (1, "S", network.n_embd))
    return graph.serialize()


class _HeadWriter(Writer):
    """Writes a head."""

    def __init__(self, network: Network, tables: tuple[Matrix, Matrix], *, f16: bool) -> None:
        super().__init__(network, _Inline(), f16=f16)
        self._tables = tables

    def write(self) -> Graph:
        graph, net, (embedding, output) = self.graph, self._net, self._tables
        self._declare()
        graph.takes(FEATURE, FLOAT, (1, "S", net.n_embd))
        graph.gives(HIDDEN, FLOAT, (1, "S", net.n_embd))
        gather(graph, self.store, embedding, "ids", "x")
        sides = [self._norm("x", "", "blk.0.attn_norm.weight")[0]]
        sides.append(self._norm(FEATURE, "", "blk.0.attn_norm_2.weight")[0])
        graph.node("Concat", sides, ["both"], axis=-1)
        normed, x = self._norm(FEATURE, self._attention(0, "both"), "blk.0.ffn_norm.weight")
        normed, x = self._norm(x, self._feed_forward(0, normed), "output_norm.weight")
        graph.node("Identity", [x], [HIDDEN])
        graph.node("Gather", [normed, "rows"], ["wanted"], axis=1)
        multiply(graph, self.store, output, "wanted", "logits")
        return graph


class _Inline:
    """Matrices that are written into the graph itself."""

    def __init__(self) -> None:
        self._known: dict[str, Array] = {}

    def put(self, name: str, n_bytes: int, make: Callable[[], Array]) -> None:
        if name not in self._known:
            self._known[name] = make()

    def use(self, graph: Graph, name: str) -> str:
        return graph.constant(name, self._known[name])


def _network(file: ModelFile, header: GGUFHeader) -> Network:
    tensors = {tensor.name: tensor for tensor in file.tensors}
    _check_tensors(file, tensors)
    return Network(
        kind=ARCHITECTURES["llama"],
        tensors=tensors,
        n_layers=1,
        n_embd=file.n_embd,
        n_vocab=file.n_vocab,
        n_head=file.n_head,
        n_head_kv=file.n_head_kv[:1],
        head_dims=(file.head_dim_k,),
        epsilon=float(number(header, f"{file.architecture}.attention.layer_norm_rms_epsilon", 1e-5)),
        windows=(0,),
        turned=(True,),
        rotary=read_rotary(file, header, tensors, windows=False),
    )


def _check_tensors(file: ModelFile, tensors: dict[str, TensorInfo]) -> None:
    """Every tensor is one that the graphs use, in the shape that they expect, and none is missing."""
    w, q, kv = file.n_embd, file.n_head * file.head_dim_k, file.n_head_kv[0] * file.head_dim_k
    up = tensors.get("blk.0.ffn_up.weight")
    n_ff = up.shape[-1] if up is not None else 0
    needed = {
        "fc": (3 * w, w),
        "output_norm": (w,),
        **{f"blk.0.{name}": (w,) for name in ("attn_norm", "attn_norm_2", "ffn_norm")},
        "blk.0.attn_q": (2 * w, q),
        "blk.0.attn_k": (2 * w, kv),
        "blk.0.attn_v": (2 * w, kv),
        "blk.0.attn_output": (q, w),
        "blk.0.ffn_gate": (w, n_ff),
        "blk.0.ffn_up": (w, n_ff),
        "blk.0.ffn_down": (n_ff, w),
    }
    found = {name.removesuffix(".weight"): tensor.shape for name, tensor in tensors.items()}
    for name in sorted(needed.keys() | found.keys()):
        if needed.get(name) != found.get(name):
            what = f"has the tensor {name} in the shape {found.get(name)} instead of {needed.get(name)}"
            raise UnsupportedModel(f"{file.path.name} {what}", hint="make the head again (`edge-spec drafter make`)")


def _tables(file: ModelFile, target: ModelFile) -> tuple[Matrix, Matrix]:
    """Return the target's embeddings and output rows of the tokens that a head knows; often they are the same."""
    assert file.trimmed is not None
    kept = np.array(file.trimmed.ids.decode(), np.int64)
    tensors = {tensor.name.removesuffix(".weight"): tensor for tensor in target.tensors}
    embedding = _rows(tensors["token_embd"], kept, "rows of embeddings")
    if "output" not in tensors:
        return embedding, embedding
    return embedding, _rows(tensors["output"], kept, "rows of the output")


def _rows(tensor: TensorInfo, kept: npt.NDArray[np.int64], name: str) -> Matrix:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    stored: Any = np.ascontiguousarray(tensor_blocks(tensor)[kept])
    kind = tensor.type_name
    if kind != _TABLE:
        stored = stored.view({"F32": np.float32, "F16": np.float16}.get(kind, np.uint8))
        try:
            stored = quantize(dequantize(stored, GGMLQuantizationType[kind]), GGMLQuantizationType[_TABLE])
        except (KeyError, NotImplementedError) as error:
            raise UnsupportedModel(
                f"{tensor.path.name} has {tensor.name} in the type {kind}, which a head cannot copy rows from",
                hint=Sentence("use a small model as {draft}, or none"),
            ) from error
    # A block of zeros stands for zeros.
    blocks = np.concatenate([stored, np.zeros((1, stored.shape[1]), np.uint8)])
    return Matrix(name=name, kind=_TABLE, n_out=len(blocks), n_in=tensor.shape[0], parts=lambda: [blocks])
