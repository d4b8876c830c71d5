"""What a transcription takes, and whether the disk has room for it."""

from __future__ import annotations

import shutil
from pathlib import Path

from edge_spec.engines.onnx.transcription import matrices
from edge_spec.engines.onnx.transcription.architecture import llama_only
from edge_spec.engines.onnx.transcription.graph import ATTENTION_HEADS, matrices_of
from edge_spec.engines.onnx.transcription.network import Network
from edge_spec.errors import DiskFull, UnsupportedModel
from edge_spec.models.model_file import ModelFile

__all__ = ["check_space", "disk_full", "stored_bytes"]


def stored_bytes(file: ModelFile, network: Network) -> int:
    """The most that a transcription takes.

    Raises:
        UnsupportedModel: the kernels do not know the type of a matrix, or have no attention for heads of this size.
    """
    if network.head_dim not in ATTENTION_HEADS:
        raise llama_only(file, f"has heads of {network.head_dim} numbers, which edge-spec's attention does not know")
    total = 1 << 20
    for matrix in matrices_of(network):
        try:
            total += matrices.stored_bytes(matrix.kind, matrix.n_out, matrix.n_in) + 4096
        except UnsupportedModel as error:
            raise llama_only(file, f"cannot be transcribed: {error.message}") from error
    return total


def check_space(file: ModelFile, folder: Path, n_bytes: int) -> None:
    """Refuse a transcription that does not fit on the disk of a folder.

    Raises:
        DiskFull: there is less room.
    """
    if shutil.disk_usage(folder).free < n_bytes:
        raise disk_full(file, folder, n_bytes)


def disk_full(file: ModelFile, folder: Path, n_bytes: int) -> DiskFull:
    """The error that says that it does not fit."""
    return DiskFull(
        f"the ONNX form of {file.path.name} in {folder}",
        needed_bytes=n_bytes,
        available_bytes=shutil.disk_usage(folder).free,
        hint="free some space, or use --engine llama",
    )
