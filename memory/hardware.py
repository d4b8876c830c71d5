"""Describe the computer, as far as it matters for memory and speed.

``edge-spec doctor`` prints all of it, and measurements are labeled with the processor's name: speeds of a device that
is not at hand can only be explained by its instructions, caches and kinds of cores.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_spec.memory.device import system_text, whole_number

__all__ = ["Hardware", "describe", "processor"]

Ask = Callable[[str], str | None]
"""Answers what the system is asked by name, None where it has no answer."""

_FEATURES = (
    *("sse3", "ssse3", "sse4_1", "avx", "avx2", "f16c", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16"),
    *("amx_int8", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme", "rvv"),
)
_APPLE = {
    "FEAT_DotProd": "asimddp",
    "FEAT_I8MM": "i8mm",
    "FEAT_BF16": "bf16",
    "FEAT_FP16": "asimdhp",
    "FEAT_SME": "sme",
}


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A computer.

    Attributes:
        system: operating system and architecture, such as ``Linux aarch64``.
        processor: its own name for itself; empty if it has none.
        board: the model of a single-board computer, such as ``Raspberry Pi 5 Model B Rev 1.0``; empty on others.
        features: instruction sets that matter for matrix products, in a fixed order.
        cache_bytes: by name (``L1d``, ``L2``, ``L3``) the size of one such cache; empty where unknown.
        n_performance_cores, n_efficiency_cores: None where the processor has one kind of core.
        swap_bytes: in total. Plans do not use it.
        unified_memory: whether processor and graphics share their memory, as on Apple Silicon.
    """

    system: str
    processor: str = ""
    board: str = ""
    features: tuple[str, ...] = ()
    cache_bytes: dict[str, int]
    n_performance_cores: int | None = None
    n_efficiency_cores: int | None = None
    swap_bytes: int = 0
    unified_memory: bool = False


def _sysctl(name: str) -> str | None:
    if sys.platform != "darwin":
        return None
    try:
        done = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip() or None


def _swap() -> int:
    import psutil

    try:
        return int(psutil.swap_memory().total)
    except (OSError, RuntimeError):  # some systems hide it
        return 0


def describe(
    *,
    text: Ask = system_text,
    sysctl: Ask = _sysctl,
    swap: Callable[[], int] = _swap,
    system: str | None = None,
    machine: str | None = None,
) -> Hardware:
    """Return a description of this computer.

    Args:
        text: reads a system file; None if it cannot be read.
        sysctl: macOS's answer to a name; None where there is none.
        swap: bytes of swap.
        system, machine: as ``platform`` says.
    """
    system, machine = system or platform.system(), machine or platform.machine()
    cpuinfo = text("/proc/cpuinfo") or ""
    kinds = _core_kinds(text, sysctl)
    return Hardware(
        system=f"{system} {machine}".strip(),
        processor=_field(cpuinfo, "model name") or sysctl("machdep.cpu.brand_string") or "",
        board=(text("/proc/device-tree/model") or "").strip("\0\n ")[:128],
        features=_features(cpuinfo, sysctl),
        cache_bytes=_caches(text, sysctl),
        n_performance_cores=kinds[0],
        n_efficiency_cores=kinds[1],
        swap_bytes=swap(),
        unified_memory=system == "Darwin" and machine == "arm64",
    )


def processor() -> str:
    """Return a text that differs between processors that may compute differently."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as info:
            lines = {line for line in info if line.startswith(("model name", "flags", "Features", "CPU part"))}
            return "".join(sorted(lines))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"


def _field(cpuinfo: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else ""


def _features(cpuinfo: str, sysctl: Ask) -> tuple[str, ...]:
    found = set((_field(cpuinfo, "flags") or _field(cpuinfo, "Features")).split())
    found |= {ours for theirs, ours in _APPLE.items() if sysctl(f"hw.optional.arm.{theirs}") == "1"}
    return tuple(feature for feature in _FEATURES if feature in found)


def _caches(text: Ask, sysctl: Ask) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for index in range(8):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        level, kind, size = (text(f"{folder}/{name}") for name in ("level", "type", "size"))
        n_bytes = re.fullmatch(r"(\d{1,9})([KM]?)", (size or "").strip(), re.ASCII)
        if level is None or n_bytes is None or (kind or "").strip() == "Instruction":
            continue
        name = f"L{level.strip()[:1]}" + ("d" if (kind or "").strip() == "Data" else "")
        sizes[name] = int(n_bytes[1]) << {"": 0, "K": 10, "M": 20}[n_bytes[2]]
    for name, key in (("L1d", "hw.l1dcachesize"), ("L2", "hw.perflevel0.l2cachesize"), ("L3", "hw.l3cachesize")):
        value = whole_number(sysctl(key))
        if value:
            sizes.setdefault(name, value)
    return sizes


def _core_kinds(text: Ask, sysctl: Ask) -> tuple[int | None, int | None]:
    fast, slow = (whole_number(sysctl(f"hw.perflevel{level}.physicalcpu")) for level in (0, 1))
    if fast is not None and slow is not None:
        return fast, slow
    lists = [text(f"/sys/devices/{kind}/cpus") for kind in ("cpu_core", "cpu_atom")]  # Intel's hybrids
    if all(lists):
        return _count(lists[0] or ""), _count(lists[1] or "")
    capacities: list[int] = []  # Arm's big and little ones, relative to the largest
    for cpu in range(1024):
        capacity = whole_number(text(f"/sys/devices/system/cpu/cpu{cpu}/cpu_capacity"))
        if capacity is None:
            break
        capacities.append(capacity)
    if len(set(capacities)) > 1:
        most = max(capacities)
        return sum(c == most for c in capacities), sum(c < most for c in capacities)
    return None, None


def _count(text: str) -> int:
    """Return how many processors a list such as ``0-3,8`` names."""
    total = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        start, end = whole_number(first), whole_number(last or first)
        if start is not None and end is not None:
            total += max(0, end - start + 1)
    return total
