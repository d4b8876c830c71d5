"""What a GGUF says about its network, as far as it can be written down for ONNX Runtime.

Whatever is not understood here is refused: a graph that leaves out a tensor or a setting would still run, and
write another text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge_spec.errors import UnsupportedModel
from edge_spec.models.gguf_header import GGUFHeader, TensorInfo
from edge_spec.models.model_file import ModelFile

__all__ = ["ARCHITECTURES", "Network", "read_network", "tensor_blocks", "tensor_values"]


@dataclass(frozen=True, kw_only=True)
class _Kind:
    interleaved: bool
    head_norms: bool = False


ARCHITECTURES = {
    "llama": _Kind(interleaved=True),
    "qwen2": _Kind(interleaved=False),
    "qwen3": _Kind(interleaved=False, head_norms=True),
}
"""GGUF architectures that can be transcribed. ``interleaved``: rotary embeddings turn neighbouring numbers of a
head, else those half a head apart. ``head_norms``: queries and keys are normalised head by head."""

_HARMLESS = ("context_length", "vocab_size", "rope.scaling.original_context_length", "rope.scaling.finetuned")
_KNOWN = frozenset(
    (
        "block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
        "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
        "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", *_HARMLESS,
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Network:
    """A decoder-only transformer with grouped-query attention and a gated feed-forward network.

    Attributes:
        tensors: by name, as in the file.
        n_head, n_head_kv: heads of queries, and of keys and values.
        head_dim: width of a head.
        epsilon: of the root-mean-square norms.
        frequencies: angle per position of each pair of numbers in a head, ``[head_dim / 2]``, float64.
        interleaved, head_norms: see ``ARCHITECTURES``.
    """

    header: GGUFHeader
    tensors: dict[str, TensorInfo]
    n_layers: int
    n_embd: int
    n_vocab: int
    n_head: int
    n_head_kv: int
    head_dim: int
    epsilon: float
    frequencies: npt.NDArray[np.float64]
    interleaved: bool
    head_norms: bool


def read_network(file: ModelFile, header: GGUFHeader) -> Network:
    """The network of a model file.

    Raises:
        UnsupportedModel: another architecture, or a setting or tensor that the graph could not express.
    """
    kind = ARCHITECTURES.get(file.architecture)
    if kind is None:
        known = ", ".join(ARCHITECTURES)
        raise _llama_only(file, f"has the architecture {file.architecture!r}, and ONNX Runtime runs {known}")
    if len(file.parts) > 1:
        raise _llama_only(file, "is split into several files")
    prefix = file.architecture + "."
    for key in header.metadata:
        if key.startswith(prefix) and key.removeprefix(prefix) not in _KNOWN:
            raise _llama_only(file, f"sets {key}, which the ONNX graph cannot express")
    if len(set(file.n_head_kv)) != 1 or file.head_dim_k != file.head_dim_v or file.head_dim_k % 2:
        raise _llama_only(file, "has heads of several shapes")
    head_dim = file.head_dim_k
    if _number(header, prefix + "rope.dimension_count", head_dim) != head_dim:
        raise _llama_only(file, "turns only a part of each head by position")
    tensors = {tensor.name: tensor for tensor in header.tensors}
    frequencies = _number(header, prefix + "rope.freq_base", 10000.0) ** (-np.arange(0, head_dim, 2) / head_dim)
    scaling = header.metadata.get(prefix + "rope.scaling.type", "none")
    if scaling == "linear":
        frequencies /= _number(header, prefix + "rope.scaling.factor", 1.0)
    elif scaling != "none":
        raise _llama_only(file, f"stretches positions in the way {scaling!r}")
    if "rope_freqs.weight" in tensors:
        frequencies /= tensor_values(header, tensors["rope_freqs.weight"]).astype(np.float64)
    network = Network(
        header=header,
        tensors=tensors,
        n_layers=file.n_layers,
        n_embd=file.n_embd,
        n_vocab=file.n_vocab,
        n_head=file.n_head,
        n_head_kv=file.n_head_kv[0],
        head_dim=head_dim,
        epsilon=float(_number(header, prefix + "attention.layer_norm_rms_epsilon", 1e-5)),
        frequencies=frequencies,
        interleaved=kind.interleaved,
        head_norms=kind.head_norms,
    )
    _check_tensors(file, network)
    return network


def _check_tensors(file: ModelFile, network: Network) -> None:
    """Every tensor is one that the graph uses, in the shape it expects, and none is missing."""
    q, kv, embd = network.n_head * network.head_dim, network.n_head_kv * network.head_dim, network.n_embd
    n_ff = network.tensors["blk.0.ffn_gate.weight"].shape[-1] if "blk.0.ffn_gate.weight" in network.tensors else 0
    needed: dict[str, tuple[int, ...]] = {"token_embd.weight": (embd, network.n_vocab), "output_norm.weight": (embd,)}
    optional: dict[str, tuple[int, ...]] = {
        "output.weight": (embd, network.n_vocab), "rope_freqs.weight": (network.head_dim // 2,)
    }  # fmt: skip
    for layer in range(network.n_layers):
        parts = {
            "attn_norm": (embd,), "ffn_norm": (embd,), "attn_q": (embd, q), "attn_k": (embd, kv), "attn_v": (embd, kv),
            "attn_output": (q, embd), "ffn_gate": (embd, n_ff), "ffn_up": (embd, n_ff), "ffn_down": (n_ff, embd),
        }  # fmt: skip
        if network.head_norms:
            parts |= {"attn_q_norm": (network.head_dim,), "attn_k_norm": (network.head_dim,)}
        needed |= {f"blk.{layer}.{part}.weight": shape for part, shape in parts.items()}
        optional |= {f"blk.{layer}.attn_{part}.bias": (n,) for part, n in (("q", q), ("k", kv), ("v", kv))}
    for name, shape in needed.items():
        if name not in network.tensors:
            raise _llama_only(file, f"lacks the tensor {name}")
        if network.tensors[name].shape != shape:
            raise _llama_only(file, f"has {name} in the shape {network.tensors[name].shape} instead of {shape}")
    for name, tensor in network.tensors.items():
        if name not in needed and optional.get(name) != tensor.shape:
            raise _llama_only(file, f"has the tensor {name}, which the ONNX graph has no place for")


def _llama_only(file: ModelFile, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{file.path.name} {what}: llama.cpp only", hint="use --engine llama")


def _number(header: GGUFHeader, key: str, default: float) -> float:
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UnsupportedModel(f"{header.path} has no usable number for {key}", hint="convert the model again")
    return value


def tensor_blocks(header: GGUFHeader, tensor: TensorInfo) -> npt.NDArray[np.uint8]:
    """A matrix as it lies in the file, mapped: ``[n_out, bytes per row]``."""
    rows = tensor.n_elements // tensor.shape[0]
    offset = header.data_offset + tensor.offset
    return np.memmap(header.path, np.uint8, "r", offset, (rows, tensor.n_bytes // rows))


def tensor_values(header: GGUFHeader, tensor: TensorInfo) -> npt.NDArray[np.float32]:
    """The numbers of a small unquantised tensor, float32, slowest dimension first.

    Raises:
        UnsupportedModel: it is quantised.
    """
    raw = np.asarray(tensor_blocks(header, tensor))
    shape = tensor.shape[::-1]
    if tensor.type_name == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if tensor.type_name not in ("F32", "F16"):
        raise UnsupportedModel(f"{tensor.name} is {tensor.type_name}, not plain numbers", hint="use --engine llama")
    return raw.view(np.float32 if tensor.type_name == "F32" else np.float16).astype(np.float32).reshape(shape)
