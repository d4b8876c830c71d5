"""Rows of the target's own matrices, in 32-bit floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.models import ModelFile

__all__ = ["EMBEDDING", "OUTPUT", "embedding_rows", "rows_of"]

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
_START_SIZE = 0.02
"""Root mean square of the weights that a training begins with."""


def rows_of(target: ModelFile, name: str) -> npt.NDArray[np.float32] | None:
    """Return a matrix of the target, ``[outputs, inputs]``.

    None where its file has none in a form that can be read here.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    if target.graph is not None:
        return None
    tensor = next((tensor for tensor in target.tensors if tensor.name == name), None)
    if tensor is None or tensor.type_name not in GGMLQuantizationType.__members__:
        return None
    kind = GGMLQuantizationType[tensor.type_name]
    raw: Any = np.fromfile(tensor.path, np.uint8, tensor.n_bytes, offset=tensor.offset)
    try:
        rows = dequantize(_as_stored(raw, kind).reshape(tensor.shape[-1], -1), kind)
    except NotImplementedError:  # gguf reads most types, but not all
        return None
    return np.asarray(rows, np.float32)


def embedding_rows(target: ModelFile, kept: npt.NDArray[np.int64]) -> npt.NDArray[np.float32] | None:
    """Return the target's embeddings of some tokens and, last, the mean of all others, ``[n_kept + 1, width]``.

    They are centered, and as small as random ones would be: with the target's own size a drafter would begin far more
    certain of its guesses than it may be (SmolLM2's: 28 nats from the target instead of 7).

    None where the file does not hold them in a form that can be read here.
    """
    rows = rows_of(target, EMBEDDING)
    if rows is None:
        return None
    others = np.ones(target.n_vocab, np.bool_)
    others[kept] = False
    mean = rows[others].mean(0) if others.any() else rows.mean(0)
    found = np.concatenate([rows[kept], mean[None]]).astype(np.float32)
    found -= found.mean(0)
    scaled: npt.NDArray[np.float32] = found * (_START_SIZE / max(1e-9, float(np.sqrt(np.square(found).mean()))))
    return scaled


def _as_stored(raw: Any, kind: Any) -> Any:
    return raw.view({"F32": np.float32, "F16": np.float16}.get(kind.name, np.uint8))
