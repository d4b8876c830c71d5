"""Laws of memory: the smallest limit counts, estimates are exact, what does not fit is refused in numbers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.errors import OutOfMemory
from edge_spec.memory import Device, Readings, probe, require
from edge_spec.memory.device import Limit

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


# --- saying no


def test_what_fits_passes_and_what_does_not_is_refused_with_both_numbers() -> None:
    small = device(address_space=Limit(total_bytes=GIB, available_bytes=512 << 20))
    require("the KV cache", 512 << 20, small, "lower --ctx")
    with pytest.raises(
        OutOfMemory, match=r"the KV cache needs 513 MiB, and 512 MiB are available; lower --ctx"
    ) as caught:
        require("the KV cache", (512 << 20) + 1, small, "lower --ctx")
    assert (caught.value.needed_bytes, caught.value.available_bytes) == ((512 << 20) + 1, 512 << 20)
