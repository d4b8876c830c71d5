"""Interrupted downloads, in ``.partial`` of the model folder: each in a folder named after the content it will have.

So a download continues whichever name asks for it, and two processes do not write one file.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edge_spec.errors import DownloadError
from edge_spec.foreign import read_regular
from edge_spec.library.download import RemoteFile

__all__ = ["FOLDER", "Partial", "held_elsewhere", "interrupted"]

FOLDER = ".partial"
_PART, _NAME, _LOCK = "part", "name", "lock"


class Partial:
    """A partly downloaded file.

    Attributes:
        path: of the content so far, whether or not there is any.
    """

    def __init__(self, models: Path, file: RemoteFile) -> None:
        self._folder = models / FOLDER / file.key
        self._file = file
        self.path = self._folder / _PART

    @property
    def n_bytes(self) -> int:
        """Bytes received so far."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the file: inside the block no other process writes it.

        Raises:
            DownloadError: another process is writing it.
        """
        from filelock import FileLock, Timeout

        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self._folder.mkdir(exist_ok=True)
        lock = FileLock(self._folder / _LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise DownloadError(
                f"another edge-spec is fetching {self._file.name}",
                hint="wait for it; afterwards the same command finds the file",
            ) from None
        try:
            (self._folder / _NAME).unlink(missing_ok=True)  # it may be a link
            (self._folder / _NAME).write_text(self._file.name, "utf-8")
            yield
        finally:
            lock.release()
        if not self.path.exists():
            shutil.rmtree(self._folder, ignore_errors=True)


def interrupted(models: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names of incomplete files, and their folders."""
    with suppress(OSError):
        for folder in sorted((models / FOLDER).iterdir()):
            name = folder.name.removeprefix("new-")
            with suppress(OSError, ValueError):
                name = read_regular(folder / _NAME).decode()
            yield name, folder


def held_elsewhere(folder: Path) -> bool:
    """Return whether a process is writing what ``interrupted`` named."""
    try:
        from filelock import FileLock, Timeout
    except ImportError:  # downloads are impossible then, so no process is writing
        return False
    if not (folder / _LOCK).is_file():
        return False
    try:
        with FileLock(folder / _LOCK, timeout=0):
            return False
    except Timeout:
        return True
