"""Models whose tables are padded to another number of rows, or cut, as those of one family often are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from copied_gguf import copy_metadata

UNUSED, NORMAL = 5, 1
TOKENS, TYPES, SCORES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"


def write_padded(
    source: Path, path: Path, n_vocab: int, *, reserve: range = range(0), name: str = "[PAD{}]", kind: int = UNUSED
) -> Path:
    """The model of ``source`` with so many rows of embeddings.

    Rows that are added are copies of those of frequent tokens: a drafter would propose them if it were let.

    Args:
        reserve: ids of tokens to rename as well, as in an earlier model of the family that did not use them yet.
        name: of tokens that are added or renamed, their id put in.
        kind: their type.
    """
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)

    def padded(key: str, value: Any) -> Any:
        if key not in (TOKENS, TYPES, SCORES):
            return value
        n = len(value)
        value = [*value[:n_vocab], *([None] * (n_vocab - n))]
        for token in (*reserve, *range(n, n_vocab)):
            value[token] = {TOKENS: name.format(token), TYPES: kind, SCORES: -1000.0}[key]
        return value

    copy_metadata(reader, writer, leave_out=("GGUF.",), changed=padded)
    writer.add_vocab_size(n_vocab)
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name in ("token_embd.weight", "output.weight"):
            rows = np.arange(n_vocab)
            rows[len(data) :] = 300 + rows[len(data) :] % 40
            data = np.ascontiguousarray(data[rows])
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
