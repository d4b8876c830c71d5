"""The architectures of GGUFs that can be written down for ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass

from edge_spec.errors import UnsupportedModel
from edge_spec.models.model_file import ModelFile

__all__ = ["ARCHITECTURES", "Kind", "llama_only", "unfit"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What distinguishes an architecture.

    Attributes:
        interleaved: rotary embeddings turn neighboring numbers of a head, else numbers half a head apart.
        head_norms: queries and keys are normalized head by head.
        post_norms: what attention and the feed-forward network add is normalized before it is added.
        gelu: the gate is a GELU (by tanh), else a SiLU.
        scales: embeddings are multiplied by the square root of their width.
        window_every: of so many layers all but the last have a sliding window; 0 if none has.
        fused_gate: gate and up are one matrix in the file.
        ignored: settings that llama.cpp ignores as well.
    """

    interleaved: bool = False
    head_norms: bool = False
    post_norms: bool = False
    gelu: bool = False
    scales: bool = False
    window_every: int = 0
    fused_gate: bool = False
    ignored: tuple[str, ...] = ()


ARCHITECTURES = {
    "llama": Kind(interleaved=True),
    "qwen2": Kind(),
    "qwen3": Kind(head_norms=True),
    "gemma3": Kind(head_norms=True, post_norms=True, gelu=True, scales=True, window_every=6),
    "phi3": Kind(fused_gate=True, ignored=("attention.sliding_window",)),
}
"""Architectures of GGUFs that can be transcribed."""


def unfit(file: ModelFile) -> str | None:
    """Why a model cannot be transcribed, as a clause without its subject; None if it may be possible."""
    if file.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        return f"has the architecture {file.architecture!r}, and ONNX Runtime runs {known}"
    if len(file.parts) > 1:
        return "is split into several files"
    if len(set(file.n_head_kv)) != 1 or file.head_dim_k != file.head_dim_v or file.head_dim_k % 2:
        return "has heads of several shapes"
    return None


def llama_only(file: ModelFile, what: str) -> UnsupportedModel:
    """The error that says why a file cannot be transcribed."""
    return UnsupportedModel(f"{file.path.name} {what}: llama.cpp only", hint="use `engine='llama'`")
