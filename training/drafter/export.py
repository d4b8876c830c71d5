"""A trained drafter as a GGUF of 4 bits, with the list of its target's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.models import ModelFile
from edge_spec.models.made_for import add_target
from edge_spec.training.checkpoint import read_weights, whole_file
from edge_spec.training.export import add_shape, add_weights
from edge_spec.training.settings import HeadShape, Shape

__all__ = ["add_head_shape", "export_drafter", "write_drafter"]


def export_drafter(weights: Path, kept: npt.NDArray[np.int64], target: ModelFile, path: Path) -> None:
    """Write what was trained, a small model or a head."""
    shape, arrays = read_weights(weights)
    write_drafter(path, shape, arrays, kept, target)


def write_drafter(
    path: Path,
    shape: Shape,
    arrays: Mapping[str, npt.NDArray[np.float16]],
    kept: npt.NDArray[np.int64],
    target: ModelFile,
) -> None:
    """Write a drafter. The file has no tokenizer: it never reads text.

    Args:
        shape: of a head if it is a ``HeadShape``.
        arrays: weights by their names in the file.
        kept: the target's tokens that it knows, ascending, ``[n_vocab - 1]``.
    """
    import gguf

    with whole_file(path) as temporary:
        if isinstance(shape, HeadShape):
            writer = gguf.GGUFWriter(temporary, "eagle3")
            writer.add_name(f"head for {target.name}")
            writer.add_description("Drafts for one target from its hidden states; see the card beside it.")
            add_head_shape(writer, shape)
        else:
            writer = gguf.GGUFWriter(temporary, "llama")
            writer.add_name(f"drafter for {target.name}")
            writer.add_description("Small model that drafts for one target; see the card beside it.")
            add_shape(writer, shape)
        writer.add_tokenizer_model("none")
        add_target(writer, kept.tolist(), target)
        add_weights(writer, arrays, "Q4_0")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def add_head_shape(writer: Any, shape: HeadShape) -> None:
    """The metadata of llama.cpp's architecture ``eagle3``."""
    add_shape(writer, shape)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_array("eagle3.target_layers", list(shape.target_layers))
    writer.add_uint32("eagle3.target_hidden_size", shape.n_embd)
