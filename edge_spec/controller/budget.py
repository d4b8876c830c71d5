"""The memory that a process may hold, and how a plan is entered into the books."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge_spec.controller.plan import Plan
from edge_spec.errors import OutOfMemory
from edge_spec.memory import Device, Ledger, Usage, format_size, parse_size, probe, reserve_bytes, usage

__all__ = ["SHARE", "Budget", "budget_of", "ledger_of"]

SHARE = 4, 5
"""Of what is available, unless the user says how much."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What may be held.

    Attributes:
        budget_bytes: by this process altogether, with what it holds already.
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
    """The budget that a user means.

    Args:
        memory: as in ``edge_spec.load``.
        device, reading: what this computer has and this process holds; tests hand in their own.

    Raises:
        SettingsError: it is no size.
        OutOfMemory: it is more than this computer could ever give.
    """
    wanted = parse_size(memory) if memory is not None else None
    found, held = device(), reading().resident_bytes
    free = held + found.available_bytes
    if wanted is None:
        return Budget(budget_bytes=held + found.available_bytes * SHARE[0] // SHARE[1], held_bytes=held)
    if wanted > max(found.total_bytes, free):
        raise OutOfMemory(
            "the memory budget asked for",
            needed_bytes=wanted,
            available_bytes=free,
            hint="choose less, or none at all to use most of what is free",
        )
    if wanted > free:
        note = f"of the {format_size(wanted)} allowed, only {format_size(free)} are free now, and no more will be used"
        return Budget(budget_bytes=free, held_bytes=held, notes=(note,))
    return Budget(budget_bytes=wanted, held_bytes=held)


def ledger_of(plan: Plan) -> Ledger:
    """Books for a plan: its budget, its reserve, and what the process holds beside models."""
    ledger = Ledger(plan.budget_bytes, reserve=reserve_bytes(plan.chosen.peak_bytes))
    ledger.claim("process", "interpreter and libraries", plan.chosen.base_bytes)
    ledger.claim_all("process", plan.chosen.tables)
    if plan.chosen.reading_bytes:
        ledger.claim("process", "while a prompt is read", plan.chosen.reading_bytes)
    return ledger
