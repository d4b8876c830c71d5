"""Let one process at a time write a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edge_spec.models.beside import beside

__all__ = ["Stamp", "exclusive", "stamp_of"]

Stamp = tuple[int, int, int]

_NOT_THROUGH_LINKS = getattr(os, "O_NOFOLLOW", 0)
"""Do not follow links: a lock that somebody else made a link would create an empty file at its target."""


def stamp_of(path: Path | None) -> Stamp | None:
    """Return a value that changes with the content of a file; None if there is no file."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size) if found is not None else None


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Lock ``path`` against other processes, so that it does not change between reading and writing.

    The lock is a file next to ``path``, which the system releases if the process is killed.

    Raises:
        OSError: the folder cannot be written.
    """
    place = Path(os.path.realpath(path))
    lock = beside(place, ".lock")
    try:
        handle = _locked(lock)
    except OSError as error:
        # Name the file, not its lock, which users do not know.
        error.filename = os.fspath(path)
        raise
    try:
        yield
    finally:
        if sys.platform == "win32":
            # Windows cannot remove an open file, nor one that another process waits for.
            os.close(handle)
            with suppress(OSError):
                lock.unlink()
        else:
            with suppress(OSError):
                lock.unlink()
            os.close(handle)


def _locked(lock: Path) -> int:
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | _NOT_THROUGH_LINKS, 0o600)
        # Where a file system has no locks, go on as if there were no other process.
        with suppress(OSError):
            _wait_for(handle)
        try:
            if os.path.samestat(os.fstat(handle), lock.lstat()):
                return handle
        except FileNotFoundError:
            pass
        # The previous owner has removed the lock: another file has this name now, or none.
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _wait_for(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_LOCK, 1)
else:
    import fcntl

    def _wait_for(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX)
