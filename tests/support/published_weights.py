"""A llama as numbers, read from a GGUF."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from edge_spec.engines.onnx.transcription.network import tensor_blocks
from edge_spec.models import inspect, read_header

Array = npt.NDArray[Any]


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
        raw = np.asarray(tensor_blocks(tensor))
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
