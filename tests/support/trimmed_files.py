"""Drafters with trimmed vocabularies, cut out of whole ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
from copied_gguf import copy_metadata

from edge_spec.models import ModelFile
from edge_spec.models.made_for import add_target

_VOCABULARY = ("tokenizer.", "GGUF.", "edge_spec.")


def write_trimmed(
    source: Path, path: Path, kept: Sequence[int], target: ModelFile, *, vocabulary: str | None = None
) -> Path:
    """The model of ``source`` with the rows of ``kept`` only, and one more, a copy of the first, for all other tokens.

    Args:
        vocabulary: the hash that the file names; the target's if None.
    """
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    copy_metadata(reader, writer, leave_out=_VOCABULARY)
    writer.add_vocab_size(len(kept) + 1)
    writer.add_tokenizer_model("none")
    named = target.vocabulary if vocabulary is None else replace(target.vocabulary, tokens_hash=vocabulary)
    add_target(writer, kept, replace(target, vocabulary=named))
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name in ("token_embd.weight", "output.weight"):
            data = np.ascontiguousarray(data[[*kept, kept[0]]])
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
