"""Print an explanation when the system ends the process because a mapped file lost pages."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["explain_lost_pages"]

_FILE = Path(__file__).parent / ("lost_pages" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))


def explain_lost_pages(line: str) -> None:
    """Exit with 1 and a line on standard error when a mapped file is cut short or becomes unreadable.

    Where the package was installed without a compiler, and on Windows, the system's own words remain.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(str(_FILE)).edge_explain_1(f"{line}\n".encode())
