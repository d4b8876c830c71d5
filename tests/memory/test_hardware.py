"""Laws of what is known about a computer: read from what systems say, and nothing where they say nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.cli import main
from edge_spec.memory import Hardware, Limit, Readings, describe, limits

GIB = 1 << 30
CACHE = "/sys/devices/system/cpu/cpu0/cache"


def described(
    files: dict[str, str], sysctl: dict[str, str] | None = None, system: str = "Linux", machine: str = "x86_64"
) -> Hardware:
    return describe(text=files.get, sysctl=(sysctl or {}).get, swap=lambda: GIB, system=system, machine=machine)


def test_a_pc_is_described() -> None:
    files = {
        "/proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n"
        "flags\t\t: fpu sse3 avx2 fma avx512f avx512_vnni\n",
        f"{CACHE}/index0/level": "1\n",
        f"{CACHE}/index0/type": "Data\n",
        f"{CACHE}/index0/size": "48K\n",
        f"{CACHE}/index1/level": "1\n",
        f"{CACHE}/index1/type": "Instruction\n",
        f"{CACHE}/index1/size": "32K\n",
        f"{CACHE}/index2/level": "3\n",
        f"{CACHE}/index2/type": "Unified\n",
        f"{CACHE}/index2/size": "36M\n",
        "/sys/devices/cpu_core/cpus": "0-11\n",
        "/sys/devices/cpu_atom/cpus": "12-18,20\n",
    }
    found = described(files)
    assert found == Hardware(
        system="Linux x86_64",
        processor="Some CPU @ 3 GHz",
        features=("sse3", "avx2", "fma", "avx512f", "avx512_vnni"),
        cache_bytes={"L1d": 48 << 10, "L3": 36 << 20},
        n_performance_cores=12,
        n_efficiency_cores=8,
        swap_bytes=GIB,
    )


def test_a_raspberry_pi_is_described() -> None:
    files = {
        "/proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
        "/proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp\n",
    }
    found = described(files, machine="aarch64")
    assert (found.board, found.features) == ("Raspberry Pi 5 Model B Rev 1.0", ("asimd", "asimdhp", "asimddp"))
    assert found.n_performance_cores is None
    big_little = {f"/sys/devices/system/cpu/cpu{n}/cpu_capacity": str(size) for n, size in enumerate((400, 400, 1024))}
    found = described(big_little, machine="aarch64")
    assert (found.n_performance_cores, found.n_efficiency_cores) == (1, 2)


def test_apple_silicon_is_described() -> None:
    said = {
        "machdep.cpu.brand_string": "Apple M2",
        "hw.perflevel0.physicalcpu": "4",
        "hw.perflevel1.physicalcpu": "4",
        "hw.optional.arm.FEAT_I8MM": "1",
        "hw.optional.arm.FEAT_SME": "0",
        "hw.perflevel0.l2cachesize": str(16 << 20),
    }
    found = described({}, said, "Darwin", "arm64")
    assert found.unified_memory
    assert (found.processor, found.features, found.cache_bytes) == ("Apple M2", ("i8mm",), {"L2": 16 << 20})
    assert (found.n_performance_cores, found.n_efficiency_cores) == (4, 4)


@given(st.text("0123456789 :,-KMG\n\0²é", max_size=30))
def test_odd_files_are_no_reason_to_fail(odd: str) -> None:
    names = [f"{CACHE}/index0/{name}" for name in ("level", "type", "size")]
    names += ["/proc/cpuinfo", "/sys/devices/cpu_core/cpus", "/sys/devices/cpu_atom/cpus", "/proc/device-tree/model"]
    found = described(dict.fromkeys(names, odd))
    assert all(size >= 0 for size in found.cache_bytes.values())


def test_everything_that_binds_is_named() -> None:
    files = {
        "/proc/self/cgroup": "4:memory:/box\n0::/\n",
        "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(2 * GIB),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    readings = Readings(
        ram=lambda: Limit(total_bytes=8 * GIB, available_bytes=6 * GIB),
        address_space=lambda: Limit(total_bytes=4 * GIB, available_bytes=3 * GIB),
        text=files.get,
    )
    assert [(name, limit.total_bytes) for name, limit in limits(readings)] == [
        ("memory of the machine", 8 * GIB),
        ("control group", 2 * GIB),
        ("limit on address space", 4 * GIB),
    ]


# --- the command


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    said = capsys.readouterr()
    return int(caught.value.code or 0), said.out, said.err


def test_doctor_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = asked(capsys, "doctor")
    assert code == 0
    for name in ("system", "cores", "memory of the machine", "swap", "usable now", "llama-cpp-python", "own kernels"):
        assert name in out
    assert "\nONNX Runtime runs GGUFs of the architectures llama, " in out
    found = json.loads(asked(capsys, "doctor", "--json")[1])
    assert "llama" in found["architectures"]["ONNX Runtime"]
    assert found["device"]["available_bytes"] <= found["limits"][0]["total_bytes"]
    assert found["process"]["resident_bytes"] > 0


@pytest.mark.long
def test_plan_shows_who_takes_what(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = asked(capsys, "plan", "demo", "--memory", "4GiB", "--speculation", "hierarchy", "--ctx", "512")
    assert code == 0
    for part in (
        "context 512",
        "target",
        "draft",
        "intermediate",
        "KV cache",
        "reserve",
        "####",
        "smallest budgets",
        "hierarchy",
    ):
        assert part in out
    found = json.loads(asked(capsys, "plan", "demo", "--memory", "4GiB", "--json")[1])
    chosen = found["chosen"]
    held = chosen["process_bytes"] + sum(sum(lines.values()) for lines in chosen["lines"].values())
    assert held <= chosen["peak_bytes"] <= chosen["needed_bytes"] <= found["budget_bytes"] == 4 << 30
    assert set(found["thresholds"]) == {"fits", "tables", "drafter", "hierarchy"}
    for name, least in found["least"].items():
        assert least["needed_bytes"] == found["thresholds"][name]
        # Which engine needs less depends on the libraries that the process holds already.
        assert (least["n_ctx"], least["kv"]) in ((256, "q8_0/q8_0"), (256, "f16/f16"))
    assert [least["speculation"] for least in found["least"].values()] == ["off", "ngram", "sequence", "hierarchy"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("10MiB", "minimum"),
        ("0", "write 2GiB"),
        ("banana", "write 2GiB"),
        ("-3", "write 2GiB"),
        ("30MiB", "raise --memory, the minimum is"),
        ("900TiB", "choose a smaller"),
    ],
)
def test_an_impossible_budget_is_one_line(capsys: pytest.CaptureFixture[str], size: str, says: str) -> None:
    code, out, err = asked(capsys, "run", "demo", "--memory", size, "-p", "A", "-n", "1")
    assert (code, out) == (1 if size[-1] == "B" else 2, "")
    assert says in err
    assert err.count("\n") == 1
