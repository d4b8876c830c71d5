"""A head as llama.cpp's own ``eagle3`` drafter, which also holds rows of the target: made where it is used.

What edge-spec copies from the target when it loads a head is written out here: the output rows of the head's tokens as
they are stored, which target token each of them is (``d2t``), and the target's tokenizer, since llama.cpp counts the
vocabulary by it. Embeddings llama.cpp takes from the target itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.errors import UnsupportedModel
from edge_spec.models import ModelFile, read_header
from edge_spec.models.gguf.header import GGUFArray, TensorInfo, Value
from edge_spec.models.heads import EAGLE3, head_layers, is_head
from edge_spec.training.checkpoint import whole_file
from edge_spec.training.drafter.target_rows import EMBEDDING, OUTPUT

__all__ = ["export_for_llama_cpp"]

_OWN, _TOKENIZER = "edge_spec.", "tokenizer."
_CHAT_TEMPLATE = "tokenizer.chat_template"
_VOCAB_SIZE, _ARCHITECTURE = f"{EAGLE3}.vocab_size", "general.architecture"
_D2T = "d2t"


def export_for_llama_cpp(head: ModelFile, target: ModelFile, path: Path) -> None:
    """Write a head for ``--spec-type draft-eagle3``.

    Raises:
        UnsupportedModel: it is not a head, belongs to another target, or the target is not a GGUF.
    """
    import gguf

    if not is_head(head) or head.trimmed is None:
        raise UnsupportedModel(
            f"{head.path.name} is not a head on hidden states",
            hint="give the drafter.gguf of `edge-spec drafter make --kind head`; small models need no export",
        )
    head_layers(head, target)
    own, kept = read_header(head.path), np.array(head.trimmed.ids.decode(), np.int64)
    with whole_file(path) as temporary:
        writer = gguf.GGUFWriter(temporary, EAGLE3)
        for key, value in own.metadata.items():
            if not key.startswith((_OWN, _TOKENIZER)) and key not in (_ARCHITECTURE, _VOCAB_SIZE):
                _add(writer, key, value)
        writer.add_vocab_size(target.n_vocab)
        for key, value in read_header(target.path).metadata.items():
            if key.startswith(_TOKENIZER) and key != _CHAT_TEMPLATE:
                _add(writer, key, value)
        for tensor in own.tensors:
            _add_tensor(writer, tensor, _stored(tensor))
        tensor = _output_of(target)
        _add_tensor(writer, tensor, _stored(tensor)[kept], name=OUTPUT)
        writer.add_tensor(_D2T, kept)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _add(writer: Any, key: str, value: Value) -> None:
    """Copy a value of the metadata. Whole numbers of headers are 32 bits wide and not negative."""
    import gguf

    kinds = gguf.GGUFValueType
    if isinstance(value, GGUFArray):
        if value.length:
            writer.add_key_value(key, list(value.decode()), kinds.ARRAY, sub_type=kinds(value.element_type))
        return
    kind = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}[type(value)]
    writer.add_key_value(key, value, kind)


def _output_of(target: ModelFile) -> TensorInfo:
    """Return the target's matrix of output rows: often that is its embedding."""
    for name in (OUTPUT, EMBEDDING) if target.graph is None else ():
        for tensor in target.tensors:
            if tensor.name == name:
                return tensor
    raise UnsupportedModel(f"{target.path.name} has no output rows to copy", hint="give the GGUF of the head's target")


def _stored(tensor: TensorInfo) -> npt.NDArray[np.uint8]:
    """Return a tensor's bytes, ``[rows, bytes per row]``, or ``[bytes]`` of a vector."""
    data = np.fromfile(tensor.path, np.uint8, tensor.n_bytes, offset=tensor.offset)
    return data if len(tensor.shape) == 1 else data.reshape(tensor.shape[-1], -1)


def _add_tensor(writer: Any, tensor: TensorInfo, data: npt.NDArray[np.uint8], *, name: str = "") -> None:
    import gguf

    writer.add_tensor(name or tensor.name, data, raw_dtype=gguf.GGMLQuantizationType[tensor.type_name])
