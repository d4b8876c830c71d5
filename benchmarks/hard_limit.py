"""A hard limit for one process: a control group, version 1 or 2, if this user may create one, else address space."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["impose", "make_group", "mappings_bytes", "of_group"]

_LIMITS = ("memory.limit_in_bytes", "memory.max")
"""Files of a control group, version 1 and 2; one of them exists."""

_SWAP = (("memory.memsw.limit_in_bytes", True), ("memory.swap.max", False))
"""Files that limit swap, and whether memory counts there as well."""

_COUNTS = {
    "memory.max_usage_in_bytes": "highest_bytes",
    "memory.peak": "highest_bytes",
    "memory.failcnt": "at_limit",
}
_EVENTS = {"max": "at_limit", "oom": "out_of_memory", "oom_kill": "killed", "under_oom": "out_of_memory"}


def make_group() -> str:
    """A new control group for one process, below our own; empty if none can be created."""
    if not Path("/proc/self/cgroup").exists():
        return ""
    own = {line.split(":")[1]: line.split(":")[2] for line in Path("/proc/self/cgroup").read_text("ascii").split()}
    for controllers, place in own.items():
        root = "/sys/fs/cgroup" if controllers == "" else "/sys/fs/cgroup/memory"
        if controllers not in ("", "memory"):
            continue
        group = Path(f"{root}{place}") / f"edge-spec-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if any((group / name).exists() for name in _LIMITS):
            return str(group)
        group.rmdir()
    return ""


def of_group(group: str) -> dict[str, int]:
    """The counters of a group; empty if there is no group.

    ``at_limit`` counts how often the limit was met, which is harmless while the system finds pages to drop;
    ``out_of_memory`` counts how often it found none, and ``killed`` the processes that it killed then.
    """
    found: dict[str, int] = {}
    for name, counter in _COUNTS.items():
        if group and (Path(group) / name).exists():
            found[counter] = int((Path(group) / name).read_text("ascii"))
    for name in ("memory.oom_control", "memory.events"):
        if group and (Path(group) / name).exists():
            for line in (Path(group) / name).read_text("ascii").splitlines():
                event, count = line.split()
                if event in _EVENTS:
                    counter = _EVENTS[event]
                    found[counter] = max(found.get(counter, 0), int(count))
    return found


def impose(group: str, limit: int, mappings: int) -> None:
    """Limit the group, swap excluded, or this process's address space.

    Args:
        mappings: bytes of address space that are mapped and never touched, see ``mappings_bytes``.
    """
    if group:
        next(Path(group) / name for name in _LIMITS if (Path(group) / name).exists()).write_text(str(limit), "ascii")
        for name, with_memory in _SWAP:
            with suppress(OSError):
                if (Path(group) / name).exists():
                    (Path(group) / name).write_text(str(limit if with_memory else 0), "ascii")
        return
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (limit + mappings, limit + mappings))


def mappings_bytes() -> int:
    """Address space of this process that is not resident: of libraries and stacks most is mapped and never touched."""
    import psutil

    now = psutil.Process().memory_info()
    return int(now.vms - now.rss)
