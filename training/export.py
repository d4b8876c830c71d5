"""Trained weights as a GGUF: F32, F16, or Q4_0 with the embedding (which is also the output matrix) in Q8_0.

In models this small an output matrix of 4 bits would cost more quality than its bytes are worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.training.checkpoint import read_weights, whole_file
from edge_spec.training.corpus import TEMPLATE
from edge_spec.training.settings import Shape
from edge_spec.training.sources import Source
from edge_spec.training.vocabulary import PRE_TOKENIZER, SPECIAL, vocabulary_fields

__all__ = ["add_shape", "add_weights", "export"]

_END_OF_TEXT, _END_OF_TURN, _PAD = (SPECIAL.index(name) for name in ("<|endoftext|>", "<|im_end|>", "<|pad|>"))


def export(
    weights: Path, vocabulary: Path, path: Path, *, kind: str, name: str, description: str, sources: Sequence[Source]
) -> None:
    """Write a GGUF.

    Args:
        kind: ``F16``, ``Q4_0``, or ``F32``, which serves only to compare computations.
    """
    import gguf

    shape, arrays = read_weights(weights)
    tokens, types, merges = vocabulary_fields(vocabulary)
    with whole_file(path) as temporary:
        writer = gguf.GGUFWriter(temporary, "llama")
        writer.add_name(name)
        writer.add_description(description)
        writer.add_license("other")
        writer.add_license_name("see the sources' licenses")
        writer.add_dataset_count(len(sources))
        for number, source in enumerate(sources):
            writer.add_dataset_name(number, source.name)
            writer.add_dataset_description(number, f"{source.what}; license: {source.license}".lstrip("; "))
        writer.add_languages(["en"])
        add_shape(writer, shape)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(PRE_TOKENIZER)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges(merges)
        # Texts begin without a special token, as rows of the training text do.
        writer.add_bos_token_id(_END_OF_TEXT)
        writer.add_eos_token_id(_END_OF_TURN)
        writer.add_pad_token_id(_PAD)
        writer.add_add_bos_token(False)
        writer.add_chat_template(TEMPLATE)
        add_weights(writer, arrays, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def add_shape(writer: Any, shape: Shape) -> None:
    """The metadata of the architecture."""
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.n_vocab)


def add_weights(writer: Any, arrays: Mapping[str, npt.NDArray[np.float16]], kind: str) -> None:
    """The tensors, as ``kind`` (see ``export``), and what the file says of their types."""
    import gguf

    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    kinds = gguf.LlamaFileType
    writer.add_file_type({"F32": kinds.ALL_F32, "F16": kinds.MOSTLY_F16, "Q4_0": kinds.MOSTLY_Q4_0}[kind])
    for tensor, array in arrays.items():
        if array.ndim == 1 or kind == "F32":
            writer.add_tensor(tensor, array.astype(np.float32))
        elif kind == "F16":
            writer.add_tensor(tensor, array)
        elif tensor == "token_embd.weight":
            writer.add_tensor(tensor, _q8_0(array), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(tensor, _q4_0(array), raw_dtype=gguf.GGMLQuantizationType.Q4_0)


def _q4_0(array: npt.NDArray[np.float16]) -> npt.NDArray[np.uint8]:
    """Blocks of 18 bytes: the scale, then 16 bytes with codes 0 to 15 in the low nibbles and 16 to 31 in the high."""
    from edge_spec.training.quantize import q4_0

    codes, scales = (each.numpy() for each in q4_0(_tensor(array)))
    nibbles = codes.astype(np.uint8)
    return _blocks(array, scales, nibbles[:, :16] | (nibbles[:, 16:] << 4))


def _q8_0(array: npt.NDArray[np.float16]) -> npt.NDArray[np.uint8]:
    """Blocks of 34 bytes: the scale, then 32 codes."""
    from edge_spec.training.quantize import q8_0

    codes, scales = (each.numpy() for each in q8_0(_tensor(array)))
    return _blocks(array, scales, codes.astype(np.int8).view(np.uint8))


def _blocks(array: npt.NDArray[Any], scales: npt.NDArray[Any], codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    together = np.concatenate([scales.astype("<f2").view(np.uint8), codes], axis=1)
    return together.reshape(array.shape[0], -1)


def _tensor(array: npt.NDArray[np.float16]) -> Any:
    import torch

    return torch.from_numpy(array.astype(np.float32))
