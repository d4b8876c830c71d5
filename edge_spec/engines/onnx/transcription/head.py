"""A head on a target's hidden states (EAGLE-3, arXiv 2503.01840, or an MTP layer), as two pieces of graph.

One is added to the target's own graph: what goes into some of its layers, through one matrix, is a token's *feature*;
that of a layer for further tokens (MTP) is the row after the last norm. The other is the head: a layer that reads a
token's embedding and the feature of the token before it. Inputs and outputs are those of other graphs (see
``graph.py``), and besides them, a row for every token::

    feature f32 [1, S, width]   (in)      hidden f32 [1, S, width]   (out: the feature of a token that is only drafted)

    embedding f32 [1, S, width]   (in, where embeddings stay in a file)

What a head's file lacks is the target's: embeddings, which stay in their file, from where a session reads single rows,
and output rows, which are copied, rounded to 4 bits, since no text depends on them. A head that was taught here knows
some of the target's tokens and has ids of its own for them: of these both are copied, and a row of zeros stands for all
other tokens. It has learned with a first token, before which there is no feature; published heads have not, so their
rows do not see the cell of that token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels import packed_bytes
from edge_spec.engines.onnx.transcription.architecture import ARCHITECTURES
from edge_spec.engines.onnx.transcription.cache import Transcription
from edge_spec.engines.onnx.transcription.fusion import fuse
from edge_spec.engines.onnx.transcription.graph import Writer, matrix_of, sum_before
from edge_spec.engines.onnx.transcription.head_files import HEAD_GRAPHS, is_kept, keep
from edge_spec.engines.onnx.transcription.matrices import Array, Matrix, Weights, gather, multiply
from edge_spec.engines.onnx.transcription.network import Network, number, read_network, read_rotary, tensor_blocks
from edge_spec.engines.onnx.transcription.proto import FLOAT, Graph
from edge_spec.engines.onnx.transcription.rotary import Rotary, llama3_divisors, rotary_embedding
from edge_spec.errors import Sentence, UnsupportedModel
from edge_spec.models import ModelFile, read_header
from edge_spec.models.gguf.header import GGUFHeader, TensorInfo
from edge_spec.models.head_facts import D2T, HeadFacts
from edge_spec.models.head_tensors import EMBEDDING as TABLE
from edge_spec.models.head_tensors import FC_NORM, OUTPUT, drafted_tokens, require_whole
from edge_spec.models.heads import head_layers
from edge_spec.models.mtp import n_own_layers
from edge_spec.models.safetensors_head import SUFFIX, read_safetensors_head

__all__ = [
    *("EMBEDDING", "FEATURE", "HIDDEN", "Head"),
    *("fusing_bytes", "head_bytes", "head_folder", "head_network", "hidden_rows_tail", "transcribe_head"),
]

EMBEDDING, FEATURE, HIDDEN = "embedding", "feature", "hidden"

_ROUNDED = "Q4_0"
"""The type that the target's rows are rounded to."""

_FUSING = "fc.weight"

_PORTION = 1 << 12
"""Rows that are rounded at a time."""

_AFTER_NORM = ("gemma4", "qwen35", "qwen35moe")
"""Architectures whose row after the last layer is the normalized one, as llama.cpp gives it."""


@dataclass(frozen=True, kw_only=True)
class Head(Transcription):
    """A head as ONNX Runtime reads it, with the target's rows in it.

    Its graphs and weights are kept in a folder within ``folder``, that of the target's transcription, or written into
    memory where the disk has no room.

    Attributes:
        name: of its graphs; changes with the head's file.
        parts: its files.
        network: of the head.
        facts: of the head.
        tables: returns the embeddings, unless they stay in a file, and the output rows.
        n_bytes: about what its weights take.
        tail: what is added to the target's graph; its output is ``FEATURE``.
        width: of a feature.
        n_ids: how many ids it reads.
    """

    name: str
    parts: tuple[Path, ...]
    network: Network
    facts: HeadFacts
    tables: Callable[[], tuple[Matrix | None, Matrix]]
    n_bytes: int
    tail: bytes
    width: int
    n_ids: int

    def graph(self, *, f16: bool, visible: bool = False) -> Path | bytes:
        folder, tables = self.folder / self.name, cache(self.tables)

        def write(store: Weights, half: bool) -> Graph:
            return _HeadWriter(self.network, self.facts, tables(), store, f16=half).write()

        if is_kept(folder, self.parts) or keep(folder, self.parts, write, self.n_bytes):
            return folder / next(name for name, half in HEAD_GRAPHS.items() if half == f16)
        return write(_Inline(), f16).serialize()


def transcribe_head(file: ModelFile, target: ModelFile, folder: Path) -> Head:
    """Return a head for its target.

    Args:
        folder: of the target's transcription.

    Raises:
        UnsupportedModel: it belongs to another model, or lacks something. ``Head.graph`` does if rows of the target
            cannot be copied.
    """
    require_whole(file, target)
    layers, facts = head_layers(file, target), file.head
    assert facts is not None
    network = head_network(file)
    taught = file.trimmed is not None
    return Head(
        folder=folder,
        name=head_folder(file),
        heads=((network.n_head_kv[0], network.head_dims[0]),),
        n_vocab=network.n_vocab,
        rotary=network.rotary,
        layer_rotary=(network.rotary_of(0),),
        interleaved=network.kind.interleaved,
        table=None if taught else _tensor_of(TABLE, file, target),
        parts=file.parts,
        network=network,
        facts=facts,
        tables=lambda: _tables(file, target),
        n_bytes=head_bytes(file),
        tail=_feature_tail(network, facts, layers, target),
        width=network.n_embd,
        n_ids=network.n_vocab if taught else target.n_vocab,
    )


def hidden_rows_tail(layers: Sequence[int], width: int) -> bytes:
    """Return what is added to a graph so that it gives what goes into some layers, side by side: its output ``HIDDEN``.

    Args:
        layers: numbers from 1 on.
        width: of the model.
    """
    graph = _side_by_side(layers)
    graph.gives(HIDDEN, FLOAT, (1, "S", len(layers) * width))
    return graph.serialize()


def head_folder(file: ModelFile) -> str:
    """Return the name of the folder with a head's graphs."""
    return f"head-{file.fingerprint}"


def head_bytes(file: ModelFile) -> int:
    """Return what a head's weights take, with the target's rows, but for what is added to the target's graph."""
    assert file.head is not None
    output = next((tensor for tensor in file.tensors if tensor.name == f"{OUTPUT}.weight"), None)
    elsewhere = (D2T, _FUSING, f"{TABLE}.weight", f"{OUTPUT}.weight")
    stored = sum(tensor.n_bytes for tensor in file.tensors if tensor.name not in elsewhere)
    kind, width = (output.type_name, output.shape[0]) if output is not None else (_ROUNDED, file.n_embd)
    return stored + packed_bytes(kind, file.head.n_rows, width)


def fusing_bytes(file: ModelFile) -> int:
    """Return what the matrix takes that is added to the target's graph."""
    return sum(tensor.n_bytes for tensor in file.tensors if tensor.name == _FUSING)


def _side_by_side(layers: Sequence[int], last: str = "") -> Graph:
    """What goes into some layers, where the target's graph has it: the sum that the first norm of each begins with.

    Args:
        last: the name of what goes out of the last one, whose number is that of a layer which does not exist.
    """
    graph, after = Graph(), max(layers)
    names = [last if last and layer == after else sum_before(layer) for layer in layers]
    graph.node("Concat", names, [HIDDEN], axis=-1)
    return graph


def _feature_tail(network: Network, facts: HeadFacts, layers: Sequence[int], target: ModelFile) -> bytes:
    last = f"{ARCHITECTURES[target.architecture].output_norm}.weight.y"
    last += "" if facts.is_mtp or target.architecture in _AFTER_NORM else ".sum"
    parts = _Tail(network, _side_by_side(layers, last if max(layers) == n_own_layers(target) else ""))
    if facts.is_mtp:
        parts.graph.node("Identity", [HIDDEN], [FEATURE])
        parts.graph.gives(FEATURE, FLOAT, (1, "S", network.n_embd))
        return parts.graph.serialize()
    x = HIDDEN
    if network.has(f"{FC_NORM}.0"):
        x = parts.normed_apart(x, len(layers), facts.width)
    if facts.norm_before_fc:
        x = parts.normed(x, "enc.output_norm.weight")
    biased = network.tensors.get("fc.bias")
    multiply(parts.graph, _Inline(), matrix_of(network, "fc"), x, "fc.y" if biased else FEATURE)
    if biased:
        parts.graph.node("Add", ["fc.y", parts.vector("fc.bias")], [FEATURE])
    parts.graph.gives(FEATURE, FLOAT, (1, "S", network.n_embd))
    return parts.graph.serialize()


class _Tail(Writer):
    """Writes what is added to the target's graph. Its names are not those of the target's own nodes."""

    def __init__(self, network: Network, graph: Graph) -> None:
        super().__init__(network, _Inline(), f16=False)
        self.graph = graph

    def vector(self, name: str) -> str:
        return self.graph.constant(f"head.{name}", self.values(name).reshape(-1))

    def normed(self, x: str, weight: str) -> str:
        y = f"head.{weight}.y"
        inputs, epsilon = [x, self.vector(weight)], self._net.epsilon
        self.graph.node("SimplifiedLayerNormalization", inputs, [y], epsilon=epsilon, axis=-1, stash_type=1)
        return y

    def normed_apart(self, x: str, n: int, width: int) -> str:
        """Normalize ``n`` rows that lie side by side, each with weights of its own."""
        sizes, places = self.graph.constant("head.sizes", np.full(n, width, np.int64)), range(n)
        self.graph.node("Split", [x, sizes], [f"head.read.{place}" for place in places], axis=-1)
        parts = [self.normed(f"head.read.{place}", f"{FC_NORM}.{place}.weight") for place in places]
        self.graph.node("Concat", parts, ["head.read"], axis=-1)
        return "head.read"


class _HeadWriter(Writer):
    """Writes a head."""

    def __init__(
        self,
        network: Network,
        facts: HeadFacts,
        tables: tuple[Matrix | None, Matrix],
        store: Weights,
        *,
        f16: bool,
    ) -> None:
        super().__init__(network, store, f16=f16)
        self._facts, self._tables = facts, tables

    def write(self) -> Graph:
        graph, net, (embedding, output) = self.graph, self._net, self._tables
        self._declare()
        graph.takes(FEATURE, FLOAT, (1, "S", net.n_embd))
        graph.gives(HIDDEN, FLOAT, (1, "S", net.n_embd))
        x = "x"
        if embedding is not None:
            gather(graph, self.store, embedding, "ids", x)
        else:
            graph.takes(EMBEDDING, FLOAT, (1, "S", net.n_embd))
            x = EMBEDDING
        norms = ("nextn.enorm", "nextn.hnorm") if self._facts.is_mtp else ("attn_norm", "attn_norm_2")
        token, before = (
            self._norm(each, "", f"blk.0.{name}.weight")[0] for each, name in zip((x, FEATURE), norms, strict=True)
        )
        graph.node("Concat", [token, before], ["both"], axis=-1)
        if self._facts.is_mtp:
            (joined,) = self.products("both", ["blk.0.nextn.eh_proj"], "joined")
            x, added = self._layer(0, joined, "")
        else:
            residual = before if self._facts.norm_before_residual else FEATURE
            normed, x = self._norm(residual, self._attention(0, "both"), "blk.0.ffn_norm.weight")
            added = self._feed_forward(0, normed)
        normed, x = self._norm(x, added, "output_norm.weight")
        graph.node("Identity", [normed if self._facts.norm_output else x], [HIDDEN])
        graph.node("Gather", [normed, "rows"], ["wanted"], axis=1)
        multiply(graph, self.store, output, "wanted", "logits")
        fuse(graph)
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


def head_network(file: ModelFile) -> Network:
    """Return the network of a head, of which all tensors are there.

    Raises:
        UnsupportedModel: a setting that the graph could not express. Others: the file has changed.
    """
    facts = file.head
    assert facts is not None
    header = read_safetensors_head(file.path) if file.path.suffix.lower() == SUFFIX else read_header(file.path)
    if facts.is_mtp:
        return replace(read_network(file, header), n_vocab=facts.n_rows, n_unseen=1)
    tensors = {tensor.name: tensor for tensor in file.tensors}
    kind = replace(
        ARCHITECTURES["llama"], interleaved=not facts.half_apart, head_norms="blk.0.attn_q_norm.weight" in tensors
    )
    return Network(
        kind=kind,
        tensors=tensors,
        n_layers=1,
        n_embd=file.n_embd,
        n_vocab=facts.n_rows,
        n_head=file.n_head,
        n_head_kv=file.n_head_kv[:1],
        head_dims=(file.head_dim_k,),
        epsilon=float(number(header, f"{file.architecture}.attention.layer_norm_rms_epsilon", 1e-5)),
        windows=(0,),
        turned=(True,),
        rotary=_rotary(file, header, tensors),
        n_unseen=int(file.trimmed is None),
    )


def _rotary(file: ModelFile, header: GGUFHeader, tensors: dict[str, TensorInfo]) -> dict[str, Rotary]:
    rope = f"{file.architecture}.rope."
    if header.metadata.get(f"{rope}scaling.type") != "llama3":
        try:
            return read_rotary(file, header, tensors, windows=False)
        except UnsupportedModel as error:
            raise UnsupportedModel(
                f"{file.path.name} has rotary embeddings of a kind that heads are not known with",
                hint="get another head",
            ) from error

    # In GGUFs a tensor says what comes of it.
    def setting(name: str) -> float:
        return number(header, rope + name, 1.0)

    n_rotary, base, n_original = (
        int(setting("dimension_count")),
        setting("freq_base"),
        int(setting("scaling.original_context_length")),
    )
    divisors = llama3_divisors(
        n_rotary,
        base,
        factor=setting("scaling.factor"),
        n_original=n_original,
        bounds=(setting("scaling.low_freq_factor"), setting("scaling.high_freq_factor")),
    )
    return {"all": rotary_embedding(n_rotary, base, n_original=n_original, divisors=divisors)}


def _tensor_of(name: str, file: ModelFile, target: ModelFile) -> TensorInfo:
    """Return a table of a head, which may be the target's; output rows of the target may be its embeddings."""
    own, others = ({tensor.name.removesuffix(".weight"): tensor for tensor in each.tensors} for each in (file, target))
    return own.get(name) or others.get(name) or others[TABLE]


def _tables(file: ModelFile, target: ModelFile) -> tuple[Matrix | None, Matrix]:
    """Return the embeddings that are part of the graph, if any, and the output rows; they may be the same."""
    output = _tensor_of(OUTPUT, file, target)
    if file.trimmed is None:
        ids = drafted_tokens(file, target)
        if all(output is not each for each in file.tensors):
            return None, _rounded(output, np.arange(target.n_vocab) if ids is None else ids, "rows of the output")
        blocks = tensor_blocks(output)
        if ids is not None:
            # The rows of an MTP layer are those of all tokens.
            blocks = blocks[ids if file.head is not None and file.head.is_mtp else np.argsort(ids)]
        n_out, n_in = len(blocks), output.shape[0]
        return None, Matrix(name=OUTPUT, kind=output.type_name, n_out=n_out, n_in=n_in, parts=lambda: [blocks])
    kept, embedding = np.array(file.trimmed.ids.decode(), np.int64), _tensor_of(TABLE, file, target)
    rows = _rounded(embedding, kept, "rows of embeddings", others=1)
    return rows, rows if output is embedding else _rounded(output, kept, "rows of the output", others=1)


def _rounded(tensor: TensorInfo, kept: npt.NDArray[np.int64], name: str, *, others: int = 0) -> Matrix:
    """Return some rows of the target, and rows of zeros for all others."""
    stored = tensor_blocks(tensor)
    portions = [_round(tensor, stored[kept[start : start + _PORTION]]) for start in range(0, len(kept), _PORTION)]
    # A block of zeros stands for zeros.
    blocks = np.concatenate([*portions, np.zeros((others, portions[0].shape[1]), np.uint8)])
    return Matrix(name=name, kind=_ROUNDED, n_out=len(blocks), n_in=tensor.shape[0], parts=lambda: [blocks])


def _round(tensor: TensorInfo, stored: Any) -> npt.NDArray[np.uint8]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    stored, kind = np.ascontiguousarray(stored), tensor.type_name
    if kind == _ROUNDED:
        return np.asarray(stored)
    stored = stored.view({"F32": np.float32, "F16": np.float16}.get(kind, np.uint8))
    try:
        rounded = quantize(dequantize(stored, GGMLQuantizationType[kind]), GGMLQuantizationType[_ROUNDED])
    except (KeyError, NotImplementedError) as error:
        raise UnsupportedModel(
            f"{tensor.path.name} has {tensor.name} in the type {kind}, which a head cannot copy rows from",
            hint=Sentence("use a small model as {draft}, or none"),
        ) from error
    return np.asarray(rounded)
