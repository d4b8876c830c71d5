"""What a transcription will take, and whether the disk has room for it."""

from __future__ import annotations

import shutil
from pathlib import Path

from edge_spec.engines.onnx.transcription.architecture import Network, read_network
from edge_spec.engines.onnx.transcription.graph import matrices_of
from edge_spec.engines.onnx.transcription.weight_formats import Form
from edge_spec.errors import DiskFull, UnsupportedModel
from edge_spec.models.gguf.header import read_header
from edge_spec.models.model_file import ModelFile

__all__ = ["check_space", "disk_full", "refusal", "stored_bytes"]


def stored_bytes(file: ModelFile, network: Network, form: Form) -> int:
    """At most what a transcription takes.

    Raises:
        UnsupportedModel: the form has no place for one of the matrices, or no attention for the layers.
    """
    if form.attention(network.head_dim) != "rows" and (any(network.windows) or network.n_turned < network.head_dim):
        raise UnsupportedModel(
            f"{file.path.name} has attention that needs edge-spec's own kernels: llama.cpp only",
            hint="use --engine llama",
        )
    total = 1 << 20
    for matrix in matrices_of(network):
        try:
            total += form.stored_bytes(matrix.kind, matrix.n_out, matrix.n_in) + 4096
        except UnsupportedModel as error:
            raise UnsupportedModel(
                f"{file.path.name} cannot be transcribed, {error.message}: llama.cpp only", hint="use --engine llama"
            ) from error
    return total


def refusal(file: ModelFile, form: Form, *, kv: str | None = None) -> UnsupportedModel | None:
    """Why a model cannot be transcribed in a form, and run with such a KV cache; None if it can."""
    try:
        stored_bytes(file, read_network(file, read_header(file.path)), form)
    except UnsupportedModel as error:
        return error
    if kv == "f16" and form.attention(file.head_dim_k) != "rows":
        return UnsupportedModel(
            f"{file.path.name} with a KV cache in f16 needs edge-spec's own kernels", hint="use f32, or --engine llama"
        )
    return None


def check_space(file: ModelFile, folder: Path, n_bytes: int) -> None:
    """Refuse what does not fit on the disk of a folder.

    Raises:
        DiskFull: there is less room.
    """
    if shutil.disk_usage(folder).free < n_bytes:
        raise disk_full(file, folder, n_bytes)


def disk_full(file: ModelFile, folder: Path, n_bytes: int) -> DiskFull:
    """The error that says so."""
    return DiskFull(
        f"the ONNX form of {file.path.name} in {folder}",
        needed_bytes=n_bytes,
        available_bytes=shutil.disk_usage(folder).free,
        hint="free some space, choose another cache folder, or use --engine llama",
    )
