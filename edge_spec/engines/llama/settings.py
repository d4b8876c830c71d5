"""How a GGUF is run on llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from edge_spec.engines.llama.architectures import KEEPS_SNAPSHOTS, RECURRENT, most_rows
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import Sentence, SettingsError
from edge_spec.llama_cpp.library import library
from edge_spec.models import ModelFile
from edge_spec.models.gguf.types import KV_TYPES
from edge_spec.models.model_file import kv_cache_bytes

__all__ = ["LLAMA_EXTRAS", "LlamaSettings", "context_parameters", "llama_settings"]


@dataclass(frozen=True, kw_only=True)
class LlamaSettings(ModelSettings):
    """Settings of one llama.cpp context: those of every engine, and two of its own.

    ``auto`` keys have 8 bits (q8_0) where the size of heads allows: with them llama.cpp computes a row alone and among
    others bit for bit alike on the CPU, so plain decoding needs no padding; with 16-bit keys a single row takes another
    path once the cache is padded to 512 cells. They are smaller and faster to read, too. ``auto`` values are f16.

    Attributes:
        flash_attention: llama.cpp's fused attention; values below 16 bits need it.
        repack: let the library copy weights into a layout that computes faster; else they stay mapped.
        n_snapshots: before how many rows of a decode a recurrent model keeps its state; decided by the file.
        holds: whether a recurrent model can hold a second state; decided by the file.
        is_recurrent: whether layers have a state; decided by the file.
        is_alone: whether a context holds one text, since layers look back so many tokens only, or positions are scaled
            by the length of the context (longrope); decided by the file.

    Raises:
        SettingsError: a value out of its range.
    """

    flash_attention: bool = True
    repack: bool = True
    n_snapshots: int = 0
    holds: bool = False
    is_recurrent: bool = False
    is_alone: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in LLAMA_EXTRAS:
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"is {getattr(self, name)!r} and must be True or False", argument=name)
        if not self.flash_attention and self.kv_v not in ("auto", "f32", "f16", "bf16"):
            raise SettingsError(f"values of type {self.kv_v} need flash attention")

    def for_heads(self, head_dim_k: int) -> LlamaSettings:
        """These settings with the types of the cache decided; quantized types come in blocks of 32."""
        eight_bits = head_dim_k % 32 == 0 and self.flash_attention
        keys = ("q8_0" if eight_bits else "f16") if self.kv_k == "auto" else self.kv_k
        return replace(self, kv_k=keys, kv_v="f16" if self.kv_v == "auto" else self.kv_v)

    def for_latents(self, head_dim_k: int, head_dim_v: int) -> LlamaSettings:
        """Return the same where keys and values share a cache, and so a type.

        Raises:
            SettingsError: two types were given.
        """
        given = {kind for kind in (self.kv_k, self.kv_v) if kind != "auto"}
        if len(given) > 1:
            raise SettingsError(
                Sentence(
                    "is {values} and {kv_k} is {keys}, and this model caches keys and values together",
                    values=repr(self.kv_v),
                    keys=repr(self.kv_k),
                ),
                argument="kv_v",
                hint="give both the same type",
            )
        eight_bits = head_dim_k % 32 == head_dim_v % 32 == 0 and self.flash_attention
        kind = given.pop() if given else "q8_0" if eight_bits else "f16"
        return replace(self, kv_k=kind, kv_v=kind)

    def for_states(self, architecture: str) -> LlamaSettings:
        """Return the same for recurrent layers, which take sequences only.

        A target needs a snapshot for every row but one.
        """
        if architecture not in RECURRENT:
            return self
        if not self.exact:
            return replace(self, trees=False, holds=True, is_recurrent=True)
        most = min(self.prefill_chunk - 1, most_rows(architecture) or self.max_rows)
        rows = min(self.max_rows, most) if architecture in KEEPS_SNAPSHOTS else 1
        rows = max(1, rows)
        return replace(self, trees=False, max_rows=rows, n_snapshots=rows - 1, is_recurrent=True)

    @property
    def sums_by_place(self) -> bool:
        """Whether sums of the attention depend on where the cells of a text lie.

        llama.cpp takes keys and values of f16 and f32 by tiles of cells; those of f32 are turned to f16 before. Without
        flash attention it multiplies with all of them.
        """
        return not self.flash_attention or {self.kv_k, self.kv_v} <= {"f32", "f16"}

    @property
    def shares_cells(self) -> bool:
        """Whether texts may share a context: targets whose attention takes cells one by one, without trees.

        Where layers have a window llama.cpp gives cells beyond it to other texts, in any order.
        """
        is_one = self.is_recurrent or self.is_alone or self.trees or self.sums_by_place
        return self.exact and not is_one


LLAMA_EXTRAS = frozenset(("flash_attention", "repack"))
"""Settings that only llama.cpp has."""

_LONG_FACTORS = "rope_factors_long.weight"


def llama_settings(file: ModelFile, settings: ModelSettings) -> LlamaSettings:
    """Settings as a context of a file is made with them.

    Raises:
        SettingsError: one of them contradicts another, or the blocks of a cache type do not divide the file's rows.
    """
    if not isinstance(settings, LlamaSettings):
        values: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields(ModelSettings)}
        extras = {name: value for name, value in values.pop("extras").items() if name in LLAMA_EXTRAS}
        settings = LlamaSettings(**values, **extras)
    if file.latent_attention:
        settings = settings.for_latents(file.head_dim_k, file.head_dim_v)
    settings = settings.for_heads(file.head_dim_k).for_states(file.architecture)
    is_scaled = any(tensor.name == _LONG_FACTORS for tensor in file.tensors)
    settings = replace(settings, is_alone=is_scaled or file.sliding_window is not None)
    kv_cache_bytes(file, 1, settings.kv_k, settings.kv_v)
    return settings


def context_parameters(settings: LlamaSettings) -> Any:
    """Return the library's parameters of a context.

    It has a sequence for every leaf of a draft, or for every row where these may be of several texts, and one more,
    through which cells are copied. A recurrent model has a state for every sequence, and so no more than it needs.
    """
    params = library().c.llama_context_default_params()
    if settings.is_recurrent:
        n_sequences = 1 + settings.holds
    else:
        n_sequences = settings.max_rows + 1 if settings.trees or settings.shares_cells else 2
    params.n_ctx = settings.n_cells
    params.n_batch = params.n_ubatch = settings.prefill_chunk
    params.n_seq_max = n_sequences
    params.n_rs_seq = settings.n_snapshots
    params.kv_unified = n_sequences > 1
    params.n_outputs_max = max(settings.max_rows, n_sequences)
    params.n_threads, params.n_threads_batch = settings.threads
    params.type_k, params.type_v = KV_TYPES[settings.kv_k].number, KV_TYPES[settings.kv_v].number
    params.flash_attn_type = int(settings.flash_attention)
    # A window cache reuses cells that a rollback would need again; the full one keeps them all.
    params.swa_full = True
    params.no_perf = True
    return params
