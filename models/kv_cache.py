"""What llama.cpp's cache of keys and values takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edge_spec.arguments import require_one_of
from edge_spec.errors import SettingsError
from edge_spec.models.gguf.types import KV_TYPES

__all__ = ["CTX_STEP", "kv_cache_bytes"]

CTX_STEP = 256
"""llama.cpp rounds a context up to a multiple of this."""


class _Heads(Protocol):
    """The part of a ``ModelFile`` that counts here."""

    @property
    def n_head_kv(self) -> Sequence[int]: ...

    @property
    def head_dim_k(self) -> int: ...

    @property
    def head_dim_v(self) -> int: ...


def kv_cache_bytes(file: _Heads, n_ctx: int, kv_k: str = "f16", kv_v: str = "f16") -> int:
    """What the keys and values of ``n_ctx`` tokens take in a cache that keeps them all.

    In each layer a token has a row of ``n_head_kv * head_dim_k`` numbers for keys and one of
    ``n_head_kv * head_dim_v`` for values; rows are stored in whole blocks. A cache with a sliding window or a
    recurrent state takes less.

    Args:
        n_ctx: tokens; rounded up to ``CTX_STEP``.

    Raises:
        SettingsError: an unknown type, a context below 1, or rows that a type's blocks do not divide.
    """
    if n_ctx < 1:
        raise SettingsError(f"is {n_ctx} and must be 1 or more", argument="n_ctx")
    n_cells = n_ctx + -n_ctx % CTX_STEP
    sides = (("kv_k", kv_k, file.head_dim_k), ("kv_v", kv_v, file.head_dim_v))
    return n_cells * sum(_row_bytes(name, heads * dim, kind) for name, kind, dim in sides for heads in file.n_head_kv)


def _row_bytes(name: str, n_values: int, kind: str) -> int:
    require_one_of(name, kind, KV_TYPES)
    of_kind = KV_TYPES[kind]
    if n_values % of_kind.block:
        problem = f"is {kind!r}, in blocks of {of_kind.block}, and this model's cache has rows of {n_values} numbers"
        raise SettingsError(problem, argument=name, hint=f"use `{name}='f16'`")
    return of_kind.row_bytes(n_values)
