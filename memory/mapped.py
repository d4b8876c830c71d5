"""Mapped files that lose pages: the system ends the process, in whichever library it was."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["explain_lost_pages"]

_FILE = Path(__file__).parent / ("lost_pages" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))


def explain_lost_pages(line: str) -> None:
    """Have a line on standard error and exit code 1 when a mapped file is cut short or cannot be read any more.

    Where the package was installed without a compiler, and on Windows, the system's own words remain.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(str(_FILE)).edge_explain_1(f"{line}\n".encode())
