"""Layers for further tokens (MTP, NextN), inside a model or in a file beside it, as heads on that model.

Tensors are named ``blk.N.nextn.*`` besides those of a usual layer (llama.cpp's ``src/models/qwen35.cpp``); such layers
come after all others and count as layers of the model. As a head, one of them is a model of a single layer: what it
needs besides (``enorm``, ``hnorm``, ``eh_proj``) keeps its name, and what may stand for one of the model's own tensors
takes the name of that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from edge_spec.models.gguf.header import TensorInfo
from edge_spec.models.head_facts import HeadFacts
from edge_spec.models.model_file import ModelFile, bytes_by_type

__all__ = ["as_in_file", "is_mtp_alone", "mtp_head", "mtp_layers", "n_own_layers"]

_OF_LAYER = re.compile(r"blk\.(\d+)\.nextn\.")
_FIRST = "blk.0."

_STANDS_FOR = {
    "nextn.embed_tokens": "token_embd",
    "nextn.shared_head_head": "output",
    "nextn.shared_head_norm": "output_norm",
}

_TABLES = ("token_embd.weight", "output.weight")
"""What a file beside a model has of that model; the model's are read."""

_MOST_DRAFTED = 1 << 15
"""Tokens that are drafted at most: with 250,000, their output rows would be most of what a draft reads."""


def mtp_layers(tensors: Sequence[TensorInfo]) -> list[int]:
    """Return the numbers of the layers for further tokens, ascending."""
    found = (_OF_LAYER.match(tensor.name) for tensor in tensors)
    return sorted({int(layer[1]) for layer in found if layer is not None})


def is_mtp_alone(tensors: Sequence[TensorInfo]) -> bool:
    """Return whether a file has layers for further tokens and no others."""
    return bool(mtp_layers(tensors)) and not any(tensor.name.startswith(_FIRST) for tensor in tensors)


def n_own_layers(model: ModelFile) -> int:
    """Return how many layers a model has without those for further tokens."""
    return model.n_layers - len(mtp_layers(model.tensors))


def mtp_head(model: ModelFile) -> ModelFile | None:
    """Return the layers for further tokens of a file as a head; None if it has none.

    Args:
        model: with or without the layers that come before.
    """
    layers = mtp_layers(model.tensors)
    if not layers:
        return None
    tensors = tuple(_tensors(model, layers[0]))
    n_bytes = bytes_by_type((tensor.type_name, tensor.n_bytes) for tensor in tensors)
    return replace(
        model,
        fingerprint=f"{model.fingerprint}-mtp",
        n_layers=len(layers),
        n_head_kv=(max(model.n_head_kv),) * len(layers),
        head_dims=(),
        sources=(),
        state_bytes=0,
        tensors=tensors,
        n_params=sum(tensor.n_elements for tensor in tensors),
        weight_bytes=sum(n_bytes.values()),
        tensor_types=n_bytes,
        quantization=next(iter(n_bytes)),
        head=HeadFacts(
            layers=(layers[0],),
            width=model.n_embd,
            n_rows=min(model.n_vocab, _MOST_DRAFTED),
            norm_output=True,
            is_mtp=True,
        ),
    )


def _tensors(model: ModelFile, layer: int) -> list[TensorInfo]:
    blk, found = f"blk.{layer}.", dict[str, TensorInfo]()
    for tensor in model.tensors:
        if not tensor.name.startswith("blk.") and tensor.name not in _TABLES:
            found.setdefault(tensor.name, tensor)
        elif tensor.name.startswith(blk):
            name = tensor.name.removeprefix(blk)
            stem, _, ending = name.rpartition(".")
            name = f"{_STANDS_FOR[stem]}.{ending}" if stem in _STANDS_FOR else _FIRST + name
            found[name] = replace(tensor, name=name)
    return list(found.values())


def as_in_file(head: ModelFile, sentence: str) -> str:
    """Return a sentence about a head with the names of tensors that are in its file."""
    facts = head.head
    layers = facts.layers if facts is not None and facts.is_mtp else None
    return sentence.replace(_FIRST, f"blk.{layers[0]}.") if layers else sentence
