"""A trained drafter as a GGUF of 4 bits, with the list of its target's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.models import ModelFile, read_header
from edge_spec.models.gguf.trimmed import TARGET_FINGERPRINT, TARGET_TOKENS, TARGET_VOCABULARY
from edge_spec.training.checkpoint import read_weights, whole_file
from edge_spec.training.export import add_shape, add_weights

__all__ = ["embedding_rows", "export_drafter"]

_EMBEDDING = "token_embd.weight"
_START_SIZE = 0.02
"""Root mean square of the weights that a training begins with."""


def export_drafter(weights: Path, kept: npt.NDArray[np.int64], target: ModelFile, path: Path) -> None:
    """Write it. The file has no tokenizer: it never reads text."""
    import gguf

    shape, arrays = read_weights(weights)
    with whole_file(path) as temporary:
        writer = gguf.GGUFWriter(temporary, "llama")
        writer.add_name(f"drafter for {target.name}")
        writer.add_description("Small model that drafts for one target; see the card beside it.")
        add_shape(writer, shape)
        writer.add_tokenizer_model("none")
        kind = gguf.GGUFValueType
        writer.add_key_value(TARGET_TOKENS, kept.tolist(), kind.ARRAY, sub_type=kind.UINT32)
        writer.add_string(TARGET_VOCABULARY, target.vocabulary.tokens_hash)
        writer.add_string(TARGET_FINGERPRINT, target.fingerprint)
        add_weights(writer, arrays, "Q4_0")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def embedding_rows(target: ModelFile, kept: npt.NDArray[np.int64]) -> npt.NDArray[np.float32] | None:
    """The target's embeddings of some tokens and, last, the mean of all others, ``[n_kept + 1, width]``.

    They are centred, and as small as random ones would be: with the target's own size a drafter would begin far more
    certain of its guesses than it may be (SmolLM2's: 28 nats from the target instead of 7).

    None where the file does not hold them in a form that can be read here.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    if target.graph is not None:
        return None
    header = read_header(target.path)
    tensor = next((tensor for tensor in header.tensors if tensor.name == _EMBEDDING), None)
    if tensor is None or tensor.type_name not in GGMLQuantizationType.__members__:
        return None
    kind = GGMLQuantizationType[tensor.type_name]
    raw: Any = np.fromfile(target.path, np.uint8, tensor.n_bytes, offset=header.data_offset + tensor.offset)
    try:
        rows = dequantize(_as_stored(raw, kind).reshape(target.n_vocab, -1), kind)
    except NotImplementedError:  # gguf reads most types, but not all
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
