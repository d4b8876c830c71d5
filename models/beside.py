"""Temporary files and locks next to a file, and replacing it by a complete one.

Their names are short and of one length: a name that a file system takes at all has room for them beside it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edge_spec.foreign import require_regular

__all__ = ["beside", "numbered", "write_whole"]

_ABANDONED_S = 3600

_SAFE_BYTES = 128
"""Every file system takes names of this length."""


def beside(path: Path, ending: str) -> Path:
    """Return the path of a hidden file for ``path``: the same in every process, unique for each name."""
    # Names that some file systems treat as equal must share a lock.
    name = unicodedata.normalize("NFC", path.name).casefold()
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return path.with_name(f".edge-spec-{digest}{ending}")


def numbered(path: Path, number: int) -> Path:
    """Return ``path`` with a number before its suffix, shortened to what a file system allows."""
    stem, ending = path.stem, f"-{number}{path.suffix}"
    most = max(len(os.fsencode(path.name)), _SAFE_BYTES) - len(os.fsencode(ending))
    while len(os.fsencode(stem)) > most:
        stem = stem[:-1]
    return path.with_name(stem + ending)


def write_whole(path: str | os.PathLike[str], write: Callable[[str], object], *, durable: bool = True) -> None:
    """Write a file with ``write`` next to ``path``, and rename it to ``path`` once it is complete.

    A link stays, and what it leads to is replaced.

    Args:
        durable: rename it only when it is on the disk.

    Raises:
        OSError: it cannot be written; what was at ``path`` is still there.
    """
    path = Path(os.path.realpath(path))
    if os.path.lexists(path):
        require_regular(path)
    prefix = beside(path, ".").name
    for left_over in path.parent.glob(f"{prefix}*.part"):
        # A temporary file of this age was left by a killed process: no running one takes so long.
        with suppress(OSError):
            if time.time() - left_over.stat().st_mtime > _ABANDONED_S:
                left_over.unlink()
    try:
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=".part", dir=path.parent)
    except OSError as error:
        # Name the file, not the temporary one, which users do not know.
        error.filename = os.fspath(path)
        raise
    os.close(handle)
    try:
        write(name)
        if durable:
            with Path(name).open("rb+") as file:
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
