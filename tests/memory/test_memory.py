"""Laws of memory: the smallest limit counts, estimates are exact, what does not fit is refused in numbers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.errors import OutOfMemory, SettingsError
from edge_spec.memory import Device, Readings, kv_cache_bytes, probe, require
from edge_spec.memory.device import Limit
from edge_spec.memory.estimate import KV_TYPES

GIB = 1 << 30


def device(files: Mapping[str, str] | None = None, address_space: Limit | None = None) -> Device:
    """A machine of 16 GiB, 10 of them available, with four cores of two threads, seen through ``files``."""
    return probe(
        Readings(
            ram=lambda: Limit(total_bytes=16 * GIB, available_bytes=10 * GIB),
            address_space=lambda: address_space,
            cores=lambda: (4, 8),
            text=(files or {}).get,
        )
    )


def v2(group: str = "/", **numbers: int | str) -> dict[str, str]:
    folder = "/sys/fs/cgroup" + group.rstrip("/")
    names = {"max": "memory.max", "high": "memory.high", "current": "memory.current"}
    return {f"{folder}/{names[key]}": f"{value}\n" for key, value in numbers.items()}


# --- the device


def test_without_limits_the_machine_counts() -> None:
    assert device() == Device(total_bytes=16 * GIB, available_bytes=10 * GIB, n_physical_cores=4, n_logical_cores=8)


def test_this_computer_can_be_asked() -> None:
    found = probe()
    assert 0 < found.available_bytes <= found.total_bytes
    assert 1 <= found.n_physical_cores <= found.n_logical_cores


def test_a_container_limit_binds() -> None:
    found = device({"/proc/self/cgroup": "0::/\n"} | v2(max=4 * GIB, current=GIB))
    assert (found.total_bytes, found.available_bytes) == (4 * GIB, 3 * GIB)


def test_cached_files_count_as_available() -> None:
    stat = f"anon 5\ninactive_file {GIB // 4}\nactive_file {GIB - GIB // 4}\n"
    files = {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.stat": stat}
    assert device(files | v2(max=4 * GIB, current=3 * GIB)).available_bytes == 2 * GIB
    assert device(files | v2(max=4 * GIB, current=5)).available_bytes == 4 * GIB


def test_the_tightest_group_on_the_way_up_binds() -> None:
    files = {"/proc/self/cgroup": "0::/user/app\n"}
    files |= v2("/user/app", max="max", current=0)
    files |= v2("/user", max=8 * GIB, high=2 * GIB, current=GIB // 2)
    files |= v2("/", max=12 * GIB, current=0)
    found = device(files)
    assert (found.total_bytes, found.available_bytes) == (2 * GIB, 3 * GIB // 2)


def test_a_group_path_of_the_host_falls_back_to_the_root() -> None:
    files = {"/proc/self/cgroup": "0::/docker/0123abcd\n"} | v2("/", max=3 * GIB, current=0)
    assert device(files).total_bytes == 3 * GIB


def test_version_1_groups_bind_too() -> None:
    folder = "/sys/fs/cgroup/memory"
    files = {
        "/proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/box\n1:name=systemd:/\n",
        f"{folder}/box/memory.limit_in_bytes": str(6 * GIB),
        f"{folder}/box/memory.usage_in_bytes": str(2 * GIB),
        f"{folder}/box/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB // 2}\ntotal_active_file {GIB // 2}\n",
        f"{folder}/memory.limit_in_bytes": "9223372036854771712",
    }
    found = device(files)
    assert (found.total_bytes, found.available_bytes) == (6 * GIB, 5 * GIB)


def test_an_address_space_limit_binds() -> None:
    found = device(address_space=Limit(total_bytes=2 * GIB, available_bytes=GIB))
    assert (found.total_bytes, found.available_bytes) == (2 * GIB, GIB)


def test_available_is_never_negative() -> None:
    files = {"/proc/self/cgroup": "0::/\n"} | v2(max=GIB, current=2 * GIB)
    assert device(files).available_bytes == 0


ODD = st.text("0123456789 :/\n.-max\0²é", max_size=40)


@given(content=ODD, number=ODD)
def test_odd_system_files_are_ignored(content: str, number: str) -> None:
    found = device({"/proc/self/cgroup": f"{content}\n0::/\n", "/sys/fs/cgroup/memory.max": number})
    assert 0 <= found.available_bytes <= found.total_bytes <= 16 * GIB


# --- estimates


def kv(n_ctx: int, n_layers: int, heads: int, head_dim: int, kind: str = "f16") -> int:
    return kv_cache_bytes(
        n_ctx=n_ctx,
        n_layers=n_layers,
        n_head_kv=[heads] * n_layers,
        head_dim_k=head_dim,
        head_dim_v=head_dim,
        type_k=kind,
        type_v=kind,
    )


def test_kv_cache_has_the_size_that_llama_cpp_reports() -> None:
    mib = 1 << 20
    assert kv(1024, 7, 2, 64) == 7 * mib // 2  # the demo target
    assert kv(4096, 32, 32, 128) == 2048 * mib  # Llama 2 7B
    assert kv(8192, 32, 8, 128) == 1024 * mib  # Llama 3 8B
    assert kv(8192, 32, 8, 128, "q8_0") == 544 * mib
    assert kv(8192, 32, 8, 128, "q4_0") == 288 * mib


def test_context_is_rounded_up_as_llama_cpp_does() -> None:
    assert kv(1, 7, 2, 64) == kv(256, 7, 2, 64) < kv(257, 7, 2, 64) == kv(512, 7, 2, 64)


def test_block_sizes_are_those_of_ggml() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    of_ggml = {kind.name.lower(): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
    assert of_ggml | KV_TYPES == of_ggml


def test_keys_and_values_of_uneven_layers_add_up() -> None:
    found = kv_cache_bytes(
        n_ctx=256, n_layers=3, n_head_kv=(4, 0, 1), head_dim_k=64, head_dim_v=32, type_k="q8_0", type_v="f32"
    )
    assert found == 256 * (5 * 64 // 32 * 34 + 5 * 32 * 4)


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
    with pytest.raises(ValueError, match="layers"):
        kv_cache_bytes(n_ctx=1, n_layers=2, n_head_kv=[1], head_dim_k=64, head_dim_v=64)


# --- saying no


def test_what_fits_passes_and_what_does_not_is_refused_with_both_numbers() -> None:
    small = device(address_space=Limit(total_bytes=GIB, available_bytes=512 << 20))
    require("the KV cache", 512 << 20, small, "lower --ctx")
    with pytest.raises(
        OutOfMemory, match=r"the KV cache needs 513 MiB, and 512 MiB are available; lower --ctx"
    ) as caught:
        require("the KV cache", (512 << 20) + 1, small, "lower --ctx")
    assert (caught.value.needed_bytes, caught.value.available_bytes) == ((512 << 20) + 1, 512 << 20)
