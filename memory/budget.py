"""Sizes of memory as text, and how much of it a process may hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from edge_spec.errors import OutOfMemory, SettingsError
from edge_spec.memory.device import Device, probe
from edge_spec.memory.usage import Usage, usage

__all__ = ["SHARE", "Budget", "budget_of", "format_size", "parse_size"]

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "ki": 1 << 10,
    "kib": 1 << 10,
    "kb": 1000,
    "m": 1 << 20,
    "mi": 1 << 20,
    "mib": 1 << 20,
    "mb": 1000**2,
    "g": 1 << 30,
    "gi": 1 << 30,
    "gib": 1 << 30,
    "gb": 1000**3,
    "t": 1 << 40,
    "ti": 1 << 40,
    "tib": 1 << 40,
    "tb": 1000**4,
}
_MAX_REPEATS = 1 << 60


def parse_size(text: str | int) -> int:
    """Bytes from ``2GiB``, ``2GB``, ``512MiB``, ``1.5g`` or plain bytes; a single letter counts in powers of 1,024.

    Raises:
        SettingsError: it is not a size, or not above 0.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        n_bytes = text
    else:
        found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) *([a-z]{0,3})", str(text).strip().lower(), re.ASCII)
        if found is None or found[2] not in _UNITS:
            raise SettingsError(
                f"is {str(text)[:32]!r}, which is not a size", argument="memory", hint="write 2GiB, 512MiB or 1.5g"
            )
        whole, _, part = found[1].partition(".")
        unit = _UNITS[found[2]]
        n_bytes = int(whole) * unit + (int(part) * unit // 10 ** len(part) if part else 0)
    if not 0 < n_bytes <= _MAX_REPEATS:
        what = "holds nothing" if n_bytes <= 0 else "is more than any computer has"
        raise SettingsError(f"is {str(text)[:32]}, which {what}", argument="memory", hint="write 2GiB, 512MiB or 1.5g")
    return n_bytes


def format_size(n_bytes: int) -> str:
    """MiB, or GiB from ten on, rounded up: the printed size is enough."""
    mib = -(-n_bytes // (1 << 20))
    return f"{mib:,} MiB" if mib < 10 << 10 else f"{mib / 1024:.1f} GiB"


SHARE = 4, 5
"""Of what is available, unless the user says how much."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much memory a process may hold.

    Attributes:
        budget_bytes: in total, including what it holds already.
        held_bytes: what it holds already.
        notes: sentences that the user should know.
    """

    budget_bytes: int
    held_bytes: int
    notes: tuple[str, ...] = ()


def budget_of(
    memory: str | int | None,
    *,
    device: Callable[[], Device] = probe,
    reading: Callable[[], Usage] = usage,
) -> Budget:
    """The budget that the argument ``memory`` of ``edge_spec.load`` stands for.

    Args:
        memory: a size; four fifths of what is available if None.
        device, reading: what this computer has and this process holds; tests hand in their own.

    Raises:
        SettingsError: it is not a size.
        OutOfMemory: it is more than this computer could ever give.
    """
    wanted = parse_size(memory) if memory is not None else None
    found, held = device(), reading().resident_bytes
    free = held + found.available_bytes
    if wanted is None:
        return Budget(budget_bytes=held + found.available_bytes * SHARE[0] // SHARE[1], held_bytes=held)
    if wanted > max(found.total_bytes, free):
        raise OutOfMemory(
            "the memory budget",
            needed_bytes=wanted,
            available_bytes=free,
            hint="choose a smaller `memory`, or leave it out to use most of what is free",
        )
    if wanted > free:
        note = f"of the {format_size(wanted)} allowed, only {format_size(free)} are free now; no more will be used"
        return Budget(budget_bytes=free, held_bytes=held, notes=(note,))
    return Budget(budget_bytes=wanted, held_bytes=held)
