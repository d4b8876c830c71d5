"""What things will take, in bytes, before they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.errors import OutOfMemory, SettingsError
from edge_spec.memory.device import Device

__all__ = ["CTX_STEP", "KV_TYPES", "kv_cache_bytes", "require", "vocabulary_bytes"]

CTX_STEP = 256
"""llama.cpp rounds a context up to a multiple of this."""

KV_TYPES = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}
"""What a cache may hold: type -> (values per block, bytes per block), as in ggml."""


def kv_cache_bytes(
    *,
    n_ctx: int,
    n_layers: int,
    n_head_kv: Sequence[int],
    head_dim_k: int,
    head_dim_v: int,
    type_k: str = "f16",
    type_v: str = "f16",
) -> int:
    """What the keys and values of ``n_ctx`` tokens take in a cache that keeps them all.

    In each layer a token has a row of ``n_head_kv * head_dim_k`` numbers for keys and one of
    ``n_head_kv * head_dim_v`` for values; rows are stored in whole blocks. A cache with a sliding window or a
    recurrent state takes less.

    Args:
        n_ctx: tokens; rounded up to ``CTX_STEP``.
        n_head_kv: heads of each layer, ``[n_layers]``; 0 where a layer keeps nothing.

    Raises:
        SettingsError: an unknown type, a context below 1, or rows that a type's blocks do not divide.
    """
    if n_ctx < 1:
        raise SettingsError(f"a context of {n_ctx} tokens holds nothing", hint="give at least 1")
    if len(n_head_kv) != n_layers:
        raise ValueError(f"{n_layers} layers and heads for {len(n_head_kv)}")
    n_cells = n_ctx + -n_ctx % CTX_STEP
    return n_cells * sum(
        _row_bytes("K", heads * head_dim_k, type_k) + _row_bytes("V", heads * head_dim_v, type_v) for heads in n_head_kv
    )


def _row_bytes(cache: str, n_values: int, kind: str) -> int:
    if kind not in KV_TYPES:
        raise SettingsError(f"{kind!r} is no type for the {cache} cache", hint=f"choose one of {', '.join(KV_TYPES)}")
    block, block_bytes = KV_TYPES[kind]
    if n_values % block:
        raise SettingsError(
            f"the {cache} cache of this model has rows of {n_values} numbers, and {kind} packs {block}",
            hint="choose f16",
        )
    return n_values // block * block_bytes


def vocabulary_bytes(n_tokens: int, n_merges: int) -> int:
    """What llama.cpp's tables for text and tokens take.

    Fitted to ten vocabularies of 32,000 to 262,144 tokens, within 7 % of each that has merges.
    """
    if n_merges:
        return (1 << 19) + 258 * n_tokens + 89 * n_merges
    return (1 << 19) + 160 * n_tokens


def require(what: str, needed_bytes: int, device: Device, hint: str) -> None:
    """Refuse what does not fit.

    Args:
        what: the thing, as the beginning of a sentence: "the KV cache for 32768 tokens".
        hint: what to do instead.

    Raises:
        OutOfMemory: ``needed_bytes`` are more than the device has available.
    """
    if needed_bytes > device.available_bytes:
        raise OutOfMemory(what, needed_bytes=needed_bytes, available_bytes=device.available_bytes, hint=hint)
