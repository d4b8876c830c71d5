"""How each model of a family is run: the target as asked, the smaller ones as their role wants."""

from __future__ import annotations

from dataclasses import replace

from edge_spec.engines.llama import LlamaSettings
from edge_spec.engines.onnx import OnnxSettings
from edge_spec.engines.onnx.settings import KV_KINDS
from edge_spec.models import ModelFile

__all__ = ["kv_types", "llama_settings", "onnx_settings", "own_settings"]

_SMALL_PARAMS = 20_000_000
"""Below this many parameters a second thread costs more in waiting than it computes."""

_SMALL_CHUNK = 128
"""Tokens per decode while a smaller model reads a prompt: its weights lie in caches anyway, and its buffers count."""


def llama_settings(role: str, file: ModelFile, asked: LlamaSettings, *, trees: bool) -> LlamaSettings:
    """Settings of a role's model on llama.cpp; the smaller models get the target's context and their own threads."""
    settings = replace(asked, trees=trees)
    if role != "target":
        n, n_batch = asked.n_threads, asked.n_threads_batch
        if file.n_params < _SMALL_PARAMS:
            n = n_batch = 1
        chunk = max(asked.max_rows, min(asked.prefill_chunk, _SMALL_CHUNK))
        settings = replace(settings, exact=False, n_threads=n, n_threads_batch=n_batch, prefill_chunk=chunk)
    return settings.for_heads(file.head_dim_k)


def onnx_settings(role: str, file: ModelFile, asked: LlamaSettings, *, trees: bool) -> OnnxSettings:
    """The same for ONNX Runtime, whose cache holds halves only where the user wants them for keys and values alike."""
    own = llama_settings(role, file, asked, trees=trees)
    kind = asked.kv_k if asked.kv_k == asked.kv_v and asked.kv_k in KV_KINDS else "f32"
    return OnnxSettings(
        n_ctx=own.n_ctx,
        n_threads=own.n_threads,
        kv_k=kind,
        kv_v=kind,
        prefill_chunk=own.prefill_chunk,
        max_rows=own.max_rows,
        trees=trees,
        exact=own.exact,
    )


def own_settings(
    engine: str, role: str, file: ModelFile, asked: LlamaSettings, *, trees: bool
) -> LlamaSettings | OnnxSettings:
    """What the engine of a role's model is opened with."""
    return (onnx_settings if engine == "onnx" else llama_settings)(role, file, asked, trees=trees)


def kv_types(own: LlamaSettings | OnnxSettings) -> tuple[str, str]:
    """Types of the keys and values in a cache."""
    return (own.kv, own.kv) if isinstance(own, OnnxSettings) else (own.kv_k, own.kv_v)
