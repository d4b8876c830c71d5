"""The ``edge-spec`` command: one file per verb, no logic of its own."""

from __future__ import annotations

import sys
from typing import Any

if __name__ != "edge_spec.cli":
    raise ImportError("import edge_spec.cli, not cli")

__all__ = ["main"]

_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> Any:
    """Run the command and leave with its exit code, see ``edge_spec.cli.command``."""
    try:
        # Here, so that an interruption while Python still imports leaves as quietly as any other.
        from edge_spec.cli import command

        return command.main(arguments)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
