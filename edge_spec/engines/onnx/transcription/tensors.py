"""Tensors of a GGUF, mapped from the file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge_spec.errors import UnsupportedModel
from edge_spec.models.gguf.header import GGUFHeader, TensorInfo

__all__ = ["tensor_blocks", "tensor_values"]


def tensor_blocks(header: GGUFHeader, tensor: TensorInfo) -> npt.NDArray[np.uint8]:
    """A matrix as it lies in the file, mapped: ``[n_out, bytes per row]``."""
    rows = tensor.n_elements // tensor.shape[0]
    offset = header.data_offset + tensor.offset
    return np.memmap(header.path, np.uint8, "r", offset, (rows, tensor.n_bytes // rows))


def tensor_values(header: GGUFHeader, tensor: TensorInfo) -> npt.NDArray[np.float32]:
    """The numbers of a small unquantised tensor, float32, slowest dimension first.

    Raises:
        UnsupportedModel: it is quantised.
    """
    raw = np.asarray(tensor_blocks(header, tensor))
    shape = tensor.shape[::-1]
    if tensor.type_name == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if tensor.type_name not in ("F32", "F16"):
        raise UnsupportedModel(f"{tensor.name} is {tensor.type_name}, not plain numbers", hint="use --engine llama")
    return raw.view(np.float32 if tensor.type_name == "F32" else np.float16).astype(np.float32).reshape(shape)
