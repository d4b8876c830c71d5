"""The memory of the program that runs a model: the same, whichever verb counts it."""

from __future__ import annotations

from importlib import import_module

from edge_spec.memory.budget import budget_of

__all__ = ["held_bytes", "import_all"]

_TERMINAL = ("terminal.rich_display", "terminal.terminal_reader")


def import_all(*, chat: bool = False) -> None:
    """Import the modules of `edge-spec run`, or of a chat in a terminal: a budget includes the program."""
    for name in ("chat", *(_TERMINAL if chat else ())):
        import_module(f"edge_spec.cli.{name}")


def held_bytes() -> int:
    """Return the bytes that this process holds now, as a plan counts them."""
    return budget_of(None).held_bytes
