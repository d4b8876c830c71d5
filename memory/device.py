"""The memory and cores that this process can use.

The machine's memory is an upper bound. A container (control groups, versions 1 and 2) or a limit on address space
may allow less; the tightest bound counts. Swap does not count: weights in swap are slower than none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edge_spec.errors import OutOfMemory

__all__ = ["Device", "Limit", "Readings", "cores", "limits", "probe", "require", "system_text", "whole_number"]

_NO_LIMIT = 1 << 60
_RESERVED_BY_THREAD = 72 << 20
"""Address space that a thread's stack and its heap take in advance, which a budget cannot be spent on."""


def system_text(path: str) -> str | None:
    """Return the content of a small system file; None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def whole_number(text: str | None) -> int | None:
    """Return the number that a system file holds; None if it holds something else, or there is no such file."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


@dataclass(frozen=True, kw_only=True)
class Device:
    """The computer as far as this process may use it.

    Attributes:
        total_bytes: the most memory that the process could ever have.
        available_bytes: what it could allocate now.
        n_physical_cores: cores, not counting hyperthreads twice.
        n_logical_cores: cores that the process may run on.
    """

    total_bytes: int
    available_bytes: int
    n_physical_cores: int
    n_logical_cores: int


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A bound on memory, and how much of it is left."""

    total_bytes: int
    available_bytes: int


def _ram() -> Limit:
    import psutil

    memory = psutil.virtual_memory()
    return Limit(total_bytes=memory.total, available_bytes=memory.available)


def _address_space() -> Limit | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    import psutil

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    reserved = _RESERVED_BY_THREAD * (os.cpu_count() or 1)
    return Limit(total_bytes=limit, available_bytes=limit - reserved - psutil.Process().memory_info().vms)


def cores() -> tuple[int, int]:
    """Return the cores that this process may run on: physical ones, and with hyperthreads."""
    import psutil

    logical = psutil.cpu_count(logical=True) or os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        logical = min(logical, len(os.sched_getaffinity(0)))
    return min(physical, logical), logical


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Functions that read facts of the computer.

    Attributes:
        ram: the machine's memory.
        address_space: the limit on this process's address space; None if there is none.
        cores: (physical, logical).
        text: the content of a small system file; None if it cannot be read.
    """

    ram: Callable[[], Limit] = _ram
    address_space: Callable[[], Limit | None] = _address_space
    cores: Callable[[], tuple[int, int]] = cores
    text: Callable[[str], str | None] = system_text


def probe(readings: Readings | None = None) -> Device:
    """Return the memory and cores that this process may use now."""
    readings = readings or Readings()
    bounds = [limit for _, limit in limits(readings)]
    physical, logical = readings.cores()
    total = min(bound.total_bytes for bound in bounds)
    available = min(bound.available_bytes for bound in bounds)
    return Device(
        total_bytes=total,
        available_bytes=max(0, min(total, available)),
        n_physical_cores=physical,
        n_logical_cores=logical,
    )


def limits(readings: Readings | None = None) -> list[tuple[str, Limit]]:
    """Return all bounds on the memory of this process, by name; the machine's comes first."""
    readings = readings or Readings()
    found = [("memory of the machine", readings.ram())]
    # Version 1 says "no limit" with a very large number.
    found += [("control group", limit) for limit in _control_groups(readings.text) if limit.total_bytes < _NO_LIMIT]
    address_space = readings.address_space()
    if address_space is not None:
        found.append(("limit on address space", address_space))
    return found


def require(what: str, needed_bytes: int, device: Device, hint: str) -> None:
    """Raise if bytes do not fit.

    Args:
        what: the beginning of a sentence, such as "the KV cache for 32768 tokens".
        hint: what to do instead.

    Raises:
        OutOfMemory: the device has less than ``needed_bytes`` available.
    """
    if needed_bytes > device.available_bytes:
        raise OutOfMemory(what, needed_bytes=needed_bytes, available_bytes=device.available_bytes, hint=hint)


_GROUPS = {
    "": ("/sys/fs/cgroup", "memory.max memory.high", "memory.current", "inactive_file active_file"),
    "memory": (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file total_active_file",
    ),
}
"""By controller, of version 2 and 1: where the groups are, their limits, their usage, and its keys in memory.stat that
count cached files."""


def _control_groups(text: Callable[[str], str | None]) -> Iterator[Limit]:
    """Yield the limits of the process's groups and of all groups around them."""
    for line in (text("/proc/self/cgroup") or "").splitlines():
        _, controllers, group = (*line.split(":", 2), "", "", "")[:3]
        # Inside a container the path may be the host's and not exist here; its limits are then at the root.
        parts = [part for part in group.split("/") if part]
        for root, *names in (_GROUPS[each] for each in controllers.split(",") if each in _GROUPS):
            for depth in range(len(parts), -1, -1):
                limit = _group_limit(text, "/".join((root, *parts[:depth])), *names)
                if limit is not None:
                    yield limit


def _group_limit(text: Callable[[str], str | None], folder: str, bounds: str, usage: str, cached: str) -> Limit | None:
    numbers = [whole_number(text(f"{folder}/{name}")) for name in bounds.split()]
    bound = min((number for number in numbers if number is not None), default=None)
    if bound is None:  # "max", or no such group
        return None
    used = whole_number(text(f"{folder}/{usage}")) or 0
    # Usage includes cached files, such as mapped weights of an earlier run. The kernel drops those first, active ones
    # too: for the whole machine it counts them as available, and under a tight limit half of them are active.
    for line in (text(f"{folder}/memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key in cached.split():
            used -= min(used, whole_number(value) or 0)
    return Limit(total_bytes=bound, available_bytes=bound - used)
