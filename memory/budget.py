"""How much memory a process may hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge_spec.errors import OutOfMemory
from edge_spec.memory.device import Device, probe
from edge_spec.memory.sizes import format_size, parse_size
from edge_spec.memory.usage import Usage, usage

__all__ = ["SHARE", "Budget", "budget_of"]

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
