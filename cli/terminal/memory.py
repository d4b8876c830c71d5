"""Memory used, for ``/memory`` and the status line."""

from __future__ import annotations

from edge_spec.chat.chat_model import ChatModel
from edge_spec.memory import format_size, probe, usage

__all__ = ["held_bytes", "memory_lines"]


def held_bytes() -> int:
    """Resident memory of this process."""
    return usage().resident_bytes


def memory_lines(model: ChatModel) -> list[str]:
    """The output of ``/memory``: the ledger, and what was given up because memory is scarce."""
    device = probe()
    free = f"free on this device: {format_size(device.available_bytes)} of {format_size(device.total_bytes)}"
    degradations = [f"given up while memory is scarce: {name}" for name in model.degradations]
    return [*model.ledger.table(usage()).splitlines(), "", free, *degradations]
