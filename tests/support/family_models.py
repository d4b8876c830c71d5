"""The demo model with the chat template of a family, and its marks as control tokens of the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
from copied_gguf import copy_metadata
from family_templates import FAMILIES

from edge_spec.models import resolve_family
from edge_spec.tokens.shown import SHOWN

__all__ = ["MARKS", "write_family_model"]

MARKS = (*sorted(SHOWN), "<|call|>", "<|return|>")
_CONTROL = 3


def write_family_model(path: Path, family: str) -> Path:
    """Write it; the marks are the last tokens, in this order."""
    reader = gguf.GGUFReader(resolve_family("demo").target)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())

    def changed(key: str, value: Any) -> Any:
        if key == "tokenizer.ggml.tokens":
            return [*value[: -len(MARKS)], *MARKS]
        if key == "tokenizer.ggml.token_type":
            return [*value[: -len(MARKS)], *[_CONTROL] * len(MARKS)]
        return FAMILIES[family] if key == "tokenizer.chat_template" else value

    copy_metadata(reader, writer, leave_out=("GGUF.",), changed=changed)
    writer.add_vocab_size(len(reader.fields["tokenizer.ggml.tokens"].contents()))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
