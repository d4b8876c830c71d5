"""Read untrusted or damaged regular files, JSON and TOML, of limited size and depth.

All functions raise ``OSError`` or ``ValueError``; callers turn them into errors of their own.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import sys
import tomllib
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

__all__ = ["BAD_ARCHIVE", "open_regular", "parse_json", "read_json", "read_regular", "read_toml", "require_regular"]

BAD_ARCHIVE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError)
"""Exceptions of reading a damaged ZIP archive, besides ``errors.BAD_RECORD``."""

_MOST_BYTES = 16 << 20
_MOST_DEPTH = 256
"""The deepest nesting, far below the limits of Python's own parsers and printers."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading: a pipe would wait for a writer, and a device might never end.

    Raises:
        OSError: it cannot be opened, or is not a regular file. ValueError: the path is not one.
    """
    require_regular(path)
    return path.open("rb")


def require_regular(path: Path) -> None:
    """Raise if a path is not a regular file.

    Raises:
        OSError: the path does not exist, or is not a regular file. ValueError: the path is not one.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_regular(path: Path, most_bytes: int = _MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: see ``open_regular``. ValueError: it holds more than ``most_bytes``.
    """
    with open_regular(path) as file:
        raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise ValueError(f"it has more than {most_bytes >> 20} MiB")
    return raw


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:
    """Return the value of a JSON text.

    Args:
        finite: refuse numbers that JSON does not have, which Python writes and reads as NaN and Infinity.

    Raises:
        ValueError: it is not JSON, or is nested too deeply.
    """
    try:
        found = json.loads(text, parse_constant=_refuse if finite else None, parse_float=_finite if finite else None)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            # Python's own message is about its settings.
            raise ValueError(f"a number in it has more than {sys.get_int_max_str_digits():,} digits") from None
        raise
    return _shallow(found)


def read_json(path: Path, most_bytes: int = _MOST_BYTES) -> Any:
    """Return the value in a JSON file.

    Raises:
        OSError, ValueError: see ``read_regular`` and ``parse_json``.
    """
    return parse_json(read_regular(path, most_bytes))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        OSError, ValueError: see ``read_regular``; or it is not TOML, or is nested too deeply.
    """
    text = read_regular(path).decode()
    try:
        found: dict[str, Any] = _shallow(tomllib.loads(text))
    except RecursionError:
        raise _too_deep() from None
    return found


def _shallow(value: Any) -> Any:
    """Return the value; raise if it is nested too deeply."""
    level = [value]
    for _ in range(_MOST_DEPTH):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
            if isinstance(part, dict | list)
        ]
        if not level:
            return value
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {_MOST_DEPTH} levels deep")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:32]} is too large for a number")
    return number
