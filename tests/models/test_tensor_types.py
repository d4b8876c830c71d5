"""Laws of ggml's types, and of what a cache made of them takes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.errors import SettingsError
from edge_spec.models.gguf.types import KV_TYPES, TYPES_BY_NUMBER
from edge_spec.models.model_file import kv_cache_bytes


@dataclass(frozen=True)
class Heads:
    """Of the keys and values of a model, by layer."""

    n_head_kv: tuple[int, ...]
    head_dim_k: int
    head_dim_v: int
    latent_attention: bool = False

    @property
    def cell_widths(self) -> list[tuple[int, int]]:
        return [(n * self.head_dim_k, n * self.head_dim_v) for n in self.n_head_kv]


def kv(n_ctx: int, n_layers: int, heads: int, head_dim: int, kind: str = "f16") -> int:
    return kv_cache_bytes(Heads((heads,) * n_layers, head_dim, head_dim), n_ctx=n_ctx, kv_k=kind, kv_v=kind)


def test_the_table_is_that_of_ggml() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    known = {int(kind): (kind.name, int(kind), *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    # Another version of the package may know other types as well; those that both know are the same.
    assert known | TYPES_BY_NUMBER == TYPES_BY_NUMBER | known
    assert len(known.keys() & TYPES_BY_NUMBER.keys()) > 25


def test_kv_cache_has_the_size_that_llama_cpp_reports() -> None:
    mib = 1 << 20
    assert kv(1024, 7, 2, 64) == 7 * mib // 2  # the demo target
    assert kv(4096, 32, 32, 128) == 2048 * mib  # Llama 2 7B
    assert kv(8192, 32, 8, 128) == 1024 * mib  # Llama 3 8B
    assert kv(8192, 32, 8, 128, "q8_0") == 544 * mib
    assert kv(8192, 32, 8, 128, "q4_0") == 288 * mib


def test_context_is_rounded_up_as_llama_cpp_does() -> None:
    assert kv(1, 7, 2, 64) == kv(256, 7, 2, 64) < kv(257, 7, 2, 64) == kv(512, 7, 2, 64)


def test_keys_and_values_of_uneven_layers_add_up() -> None:
    found = kv_cache_bytes(Heads((4, 0, 1), 64, 32), n_ctx=256, kv_k="q8_0", kv_v="f32")
    assert found == 256 * (5 * 64 // 32 * 34 + 5 * 32 * 4)


def test_latent_attention_caches_one_row_of_a_token() -> None:
    # DeepSeek-V2-Lite: 27 layers with a row of 512 + 64 numbers each.
    found = kv_cache_bytes(Heads((1,) * 27, 576, 512, latent_attention=True), n_ctx=1024)
    assert found == 27 * 1024 * 576 * 2


@given(st.integers(1, 100_000), st.integers(1, 80), st.integers(1, 64), st.sampled_from(sorted(KV_TYPES)))
def test_kv_cache_grows_with_context_and_layers(n_ctx: int, n_layers: int, heads: int, kind: str) -> None:
    size = kv(n_ctx, n_layers, heads, 64, kind)
    assert kv(n_ctx + 256, n_layers, heads, 64, kind) > size
    assert kv(n_ctx, 2 * n_layers, heads, 64, kind) == 2 * size
    assert size <= kv(n_ctx, n_layers, heads, 64, "f32")


def test_impossible_caches_are_refused() -> None:
    for n_ctx, heads, head_dim, kind in ((0, 1, 64, "f16"), (1, 1, 64, "q3_k"), (1, 3, 40, "q8_0")):
        with pytest.raises(SettingsError):
            kv(n_ctx, 1, heads, head_dim, kind)
