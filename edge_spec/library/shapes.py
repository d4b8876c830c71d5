"""Models known by their shape alone, to plan for files that are not downloaded.

``shapes.toml`` in this folder says how large the models of the catalogue are. From that, and the type of weights in a
file's name, follow a file's tensors, near enough for its size and for the functions that plan: nothing here says what
a model takes.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

from edge_spec.library.wanted import Source, Wanted
from edge_spec.models import ModelFile, TensorInfo
from edge_spec.models.gguf.types import TYPES
from edge_spec.models.model_file import bytes_by_type
from edge_spec.tokens.tokenizer import VocabularyIdentity

__all__ = ["Shape", "file_of", "files_of", "read_shapes"]

_TYPES = {
    "Q4_0": ("Q4_0", "Q4_0", "Q6_K"),
    "Q4_1": ("Q4_1", "Q4_1", "Q6_K"),
    "Q4_K_M": ("Q4_K", "Q6_K", "Q6_K"),
    "Q8_0": ("Q8_0", "Q8_0", "Q8_0"),
    "MXFP4": ("Q8_0", "Q8_0", "Q8_0"),
    "Q1_0": ("Q1_0", "Q1_0", "Q1_0"),
    "Q2_0": ("Q2_0", "Q2_0", "Q6_K"),
    "TQ1_0": ("TQ1_0", "TQ1_0", "Q6_K"),
    "TQ2_0": ("TQ2_0", "TQ2_0", "Q6_K"),
}
"""By quantization in a file's name: the types of matrices of layers, of half of the feed-forward outputs, and of the
output matrix. As in ``llama_tensor_get_type`` of llama.cpp's ``llama-quant.cpp``."""

_EXPERTS = {"MXFP4": "MXFP4"}
"""The same for matrices of experts, if they have another type."""

_OTHERWISE = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"} | dict.fromkeys(("Q2_0", "TQ1_0", "TQ2_0"), "Q4_0")
"""The type that quantizers use instead if a row is not a multiple of a type's blocks."""

_SCORED = ("gemma3",)
"""Architectures whose vocabularies have scores instead of merges."""

_MILLION = 1e6


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The dimensions of a model; ``shapes.toml`` explains each field."""

    architecture: str
    parameters: float
    layers: int
    width: int
    inner: int
    heads: int
    head: int
    kv: int
    tokens: int
    cached: int = 0
    untied: bool = False
    state: int = 0
    experts: tuple[int, int, int, int] = (0, 0, 0, 0)
    table: int = 0

    @property
    def n_params(self) -> int:
        """The number of weights."""
        return round(self.parameters * _MILLION)

    def matrices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield names and shapes of matrices as a GGUF has them; those before feed-forward networks are one a layer."""
        found = [("token_embd.weight", (self.width, self.tokens))]
        found += [("output.weight", (self.width, self.tokens))] if self.untied else []
        found += [("per_layer_token_embd.weight", (self.table, self.tokens))] if self.table else []
        n_experts, _, n_hidden, n_dense = self.experts
        layers: list[tuple[str, tuple[int, ...]]] = []
        for layer in range(self.layers):
            has_experts = n_experts and layer >= n_dense
            inner, many = (n_hidden, (n_experts,)) if has_experts else (self.inner, ())
            end = "_exps.weight" if has_experts else ".weight"
            for name in ("ffn_gate", "ffn_up"):
                layers.append((f"blk.{layer}.{name}{end}", (self.width, inner, *many)))
            layers.append((f"blk.{layer}.ffn_down{end}", (inner, self.width, *many)))
        yield from found
        yield from layers
        rest = self.n_params - sum(math.prod(dims) for _, dims in (*found, *layers))
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_q.weight", (self.width, rest // self.layers // self.width)

    @property
    def n_cached(self) -> int:
        """The number of layers with a cache of keys and values."""
        return self.cached or self.layers

    @property
    def sources(self) -> tuple[int, ...]:
        """Return the layer whose keys and values each layer reads; empty where all read their own, or are recurrent."""
        if self.n_cached == self.layers or self.state:
            return ()
        return (*range(self.n_cached), *[0] * (self.layers - self.n_cached))


@cache
def read_shapes() -> dict[str, Shape]:
    """Return the shapes that the package knows, by repository."""
    read: dict[str, dict[str, Any]] = tomllib.loads(
        files("edge_spec.library").joinpath("shapes.toml").read_text("utf-8")
    )
    found = {}
    for repo, facts in read.items():
        if "experts" in facts:
            facts["experts"] = tuple(facts["experts"])
        found[repo] = Shape(**facts)
    return found


def file_of(shape: Shape, source: Source) -> ModelFile | None:
    """Return the header of a file, as far as plans need it; None if its name does not contain a type of weights.

    Args:
        source: where it is, by a pattern of its name.
    """
    kind = next((kind for kind in _TYPES if re.search(rf"(?<![a-z0-9]){kind}(?![a-z0-9_])", _name(source), re.I)), None)
    if kind is None:
        return None
    path = Path(source.repo.replace("/", "_")) / _name(source)
    tensors = tuple(_tensors(shape, kind, path))
    types = bytes_by_type((tensor.type_name, tensor.n_bytes) for tensor in tensors)
    identity = blake2b(f"{source.repo} {_name(source)}".encode(), digest_size=16).hexdigest()
    is_scored = shape.architecture in _SCORED
    return ModelFile(
        path=path,
        parts=(path,),
        fingerprint=identity,
        architecture=shape.architecture,
        name=source.repo,
        n_layers=shape.layers,
        n_embd=shape.width,
        n_head=shape.heads,
        n_head_kv=(*[shape.kv] * shape.n_cached, *[0] * (shape.layers - shape.n_cached)),
        head_dim_k=shape.head,
        head_dim_v=shape.head,
        n_ctx_train=0,
        n_vocab=shape.tokens,
        sliding_window=None,
        tensors=tensors,
        n_merges=0 if is_scored else shape.tokens,
        n_params=shape.n_params,
        weight_bytes=sum(types.values()),
        tensor_types=types,
        quantization=_TYPES[kind][0],
        vocabulary=VocabularyIdentity(
            n_tokens=shape.tokens,
            kind="llama" if is_scored else "gpt2",
            pre="" if is_scored else "llama-bpe",
            tokens_hash="",
            fingerprint="",
        ),
        chat_template=None,
        state_bytes=shape.state,
        sources=shape.sources,
        experts=shape.experts[:2],
    )


def files_of(entry: Wanted) -> dict[str, ModelFile] | None:
    """Return the files of an entry of the catalogue, by role; None if the shape of one is not known."""
    shapes = read_shapes()
    found = {}
    for role, source in entry.sources.items():
        file = file_of(shapes[source.repo], source) if source.repo in shapes else None
        if file is None:
            return None
        found[role] = file
    return found


def _name(source: Source) -> str:
    return source.patterns[0] if source.patterns else ""


def _tensors(shape: Shape, kind: str, path: Path) -> Iterator[TensorInfo]:
    usual, better, of_logits = _TYPES[kind]
    logits = "output.weight" if shape.untied else "token_embd.weight"
    offset = n_ends = 0
    for name, dims in shape.matrices():
        wanted = of_logits if name == logits else usual
        if "_exps" in name:
            wanted = _EXPERTS.get(kind, usual)
        if "ffn_down" in name and wanted == usual:
            n_ends += 1
            wanted = better if n_ends % 2 else usual
        type_ = TYPES[wanted]
        if dims[0] % type_.block:
            type_ = TYPES[_OTHERWISE[wanted]]
        tensor = TensorInfo(name=name, shape=dims, type=type_, path=path, offset=offset)
        offset += tensor.n_bytes
        yield tensor
