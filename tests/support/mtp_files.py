"""Files with a layer for further tokens (MTP), written from others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from copied_gguf import copy_metadata

__all__ = ["beside", "rewritten", "that_guesses", "with_own_tables"]


def rewritten(
    source: Path,
    path: Path,
    *,
    keep: Callable[[str], bool] = lambda name: True,
    more: Mapping[str, Any] | None = None,
    kinds: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write a GGUF again.

    Args:
        keep: which tensors stay.
        more: tensors of floats, ``[outputs, inputs]``, by name; they replace others.
        kinds: types that tensors become, by name.
        facts: metadata that change.
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    facts, more, kinds = facts or {}, more or {}, kinds or {}
    copy_metadata(reader, writer, leave_out=("GGUF.",), changed=lambda name, value: facts.get(name, value))
    for tensor in reader.tensors:
        if tensor.name in kinds:
            kind = gguf.GGMLQuantizationType[kinds[tensor.name]]
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
        elif keep(tensor.name) and tensor.name not in more:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, values in more.items():
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def beside(source: Path, path: Path, *, n_layers: int) -> Path:
    """Write the layer for further tokens of a model of so many others as a file beside it, as publishers do."""
    return rewritten(source, path, keep=lambda name: not name.startswith("blk.") or name.startswith(f"blk.{n_layers}."))


def with_own_tables(source: Path, path: Path, *, n_layers: int, n_embd: int, n_vocab: int) -> Path:
    """Write a model whose layer for further tokens has embeddings and an output of its own."""
    random = np.random.default_rng(8)
    names = ("embed_tokens", "shared_head_head")
    tables = {f"blk.{n_layers}.nextn.{name}.weight": random.standard_normal((n_vocab, n_embd)) for name in names}
    return rewritten(source, path, more=tables)


def that_guesses(source: Path, path: Path, *, n_layers: int) -> Path:
    """Write a model whose layer for further tokens guesses right now and then, without any training.

    Its next token depends on the last one most; the layer takes that, and hardly anything else.
    """
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    table = found["token_embd.weight"]
    embeddings = gguf.quants.dequantize(table.data, table.tensor_type)
    width = embeddings.shape[1]
    joined = np.concatenate([np.eye(width), 0.01 * np.eye(width)], axis=1)
    return rewritten(
        source, path, more={"token_embd.weight": 30 * embeddings, f"blk.{n_layers}.nextn.eh_proj.weight": joined}
    )
