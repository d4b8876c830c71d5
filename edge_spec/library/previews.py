"""Headers of models on the hub, read without downloading the weights."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from edge_spec.errors import ModelFileError
from edge_spec.library.download import RemoteFile
from edge_spec.library.finding import Pull
from edge_spec.library.hub import Hub
from edge_spec.library.names import file_called
from edge_spec.models.gguf.header import header_of

__all__ = ["named_as_asked", "preview"]

_LEAST_BYTES = 1 << 20
"""The least bytes of a request; smaller ones take about as long."""


def preview(pull: Pull, hub: Hub, folder: Path) -> dict[str, Path]:
    """Return files with the headers of the models and no weights, by role: what ``inspect`` and ``plan`` need.

    They are as long as the models, with a hole in place of the weights, which takes no room.

    Raises:
        ModelFileError: a header is damaged. ModelNotFound, DownloadError: see ``Hub``.
    """
    found = {}
    for role, files in pull.files.items():
        paths = _paths(pull, folder, role)
        for file, path in zip(files, paths, strict=True):
            if file.local is not None:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            remote = _Remote(hub, file)
            with named_as_asked(pull, folder):
                header = header_of(cast(BinaryIO, remote), path, file.n_bytes)
            _write_with_hole(path, bytes(remote.held[: header.data_offset]), file.n_bytes)
        found[role] = files[0].local or paths[0]
    return found


@contextmanager
def named_as_asked(pull: Pull, folder: Path) -> Iterator[None]:
    """Name the original instead of the preview in errors about unusable files.

    Args:
        pull, folder: as given to ``preview``.
    """
    try:
        yield
    except ModelFileError as error:
        message = error.message
        for role, files in pull.files.items():
            for path, file in zip(_paths(pull, folder, role), files, strict=True):
                message = message.replace(str(path), file.address or f"{file.repo}:{file.path}")
        if message == error.message:
            raise
        raise type(error)(message, hint="nothing was fetched; choose another file or another model") from error


def _paths(pull: Pull, folder: Path, role: str) -> list[Path]:
    """Return the paths of the previews of a role's files."""
    files = pull.files[role]
    return [folder / role / file_called(file.name, role, number, len(files)) for number, file in enumerate(files, 1)]


def _write_with_hole(path: Path, content: bytes, n_bytes: int) -> None:
    path.touch()
    if os.name == "nt":
        # Other systems make holes without being asked.
        subprocess.run(["fsutil", "sparse", "setflag", str(path)], capture_output=True, check=False)
    with path.open("r+b") as out:
        out.write(content)
        out.truncate(n_bytes)


class _Remote(io.RawIOBase):
    """A file on the hub, read forwards.

    Attributes:
        held: what was read of it, of which the last bytes may not have been asked for.
    """

    def __init__(self, hub: Hub, file: RemoteFile) -> None:
        self._hub = hub
        self._file = file
        self._at = 0
        self.held = bytearray()

    def read(self, size: int = -1) -> bytes:
        end = self._file.n_bytes if size < 0 else self._at + size
        if end > len(self.held):
            first = len(self.held)
            self.held += self._hub.read(self._file, first, max(end, first + _LEAST_BYTES))
        self._at, found = end, bytes(self.held[self._at : end])
        return found
