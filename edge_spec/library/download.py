"""Download a file: resume after an interruption, verify, and flush to disk before it gets its name."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from edge_spec.errors import DiskFull, DownloadError

__all__ = [
    "Busy",
    "Chunks",
    "OnStage",
    "Patience",
    "RemoteFile",
    "disk_full_named",
    "fetch",
    "in_time",
    "require_room",
    "sha256_of",
]

_TRIES = 6
_MOST_WAIT_S = 60.0
_MOST_BYTES = 1 << 60
_PROGRESS_BYTES = 1 << 20
"""The count of attempts starts again after this many bytes, or a sixteenth of the file."""

_SLOW_S, _SLOW_BYTES = 60.0, 1 << 14
"""A connection fails if it delivers fewer than these bytes in this time."""

_PIECE = 1 << 22
"""Bytes to hash between two progress reports."""

OnStage = Callable[[str, int], None]
"""Called with the stage of a file, ``fetching`` or ``checking``, and the number of bytes done."""


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file on the hub, or at an address elsewhere.

    Attributes:
        repo: the repository on the hub; elsewhere the host.
        commit: of the repository; empty elsewhere.
        path: the file in the repository, or of the address.
        n_bytes: its size.
        sha256: of its content, as the hub states it; empty if unknown.
        address: where it is if it is not on the hub.
        version: what that server calls this state of the file, an ETag or a date; empty if it names none.
        local: where it lies on this computer already, if the hub cannot be asked.

    Raises:
        DownloadError: the path, hash, commit or size cannot be that of a file. Folders here are named by hashes.
    """

    repo: str
    commit: str
    path: str
    n_bytes: int
    sha256: str = ""
    address: str = ""
    version: str = ""
    local: Path | None = None

    def __post_init__(self) -> None:
        if not self.path.isprintable():
            raise self._impossible("characters that cannot be printed")
        for what, value, n_digits in (("checksum", self.sha256, 64), ("commit", self.commit, 40)):
            if value and not re.fullmatch(f"[0-9a-f]{{{n_digits}}}", value):
                raise self._impossible(f"{value[:120]!r} as its {what}, not {n_digits} hexadecimal digits")
        if not 0 <= self.n_bytes < _MOST_BYTES:
            raise self._impossible("an impossible size")

    def _impossible(self, what: str) -> DownloadError:
        return DownloadError(
            f"{self.repo} states impossible values: {self.path[:120]!r} has {what}",
            hint="fetch the model from elsewhere",
        )

    @property
    def name(self) -> str:
        """The name of the file without folders."""
        return Path(self.path).name

    @property
    def key(self) -> str:
        """An identifier of the content: its hash, or else its address and version."""
        place = f"{self.repo}/{self.commit}/{self.path}/{self.address}/{self.version}/{self.n_bytes}"
        return self.sha256 or hashlib.blake2b(place.encode(), digest_size=16).hexdigest()


class Busy(Exception):
    """A request that failed and may succeed later.

    Attributes:
        why: a clause.
        wait_s: how long the server asks to wait.
    """

    def __init__(self, why: str, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.wait_s = wait_s


class Patience:
    """Waits between attempts, longer each time, and gives up after several that failed.

    Args:
        pause: waits a number of seconds.
        tries: attempts in all.
    """

    def __init__(self, pause: Callable[[float], None], tries: int = _TRIES) -> None:
        self._pause = pause
        self._tries = tries
        self._done = 0

    def wait(self, what: str, busy: Busy, hint: str) -> None:
        """Wait after a failed attempt.

        Raises:
            DownloadError: it was the last one.
        """
        self._done += 1
        if self._done >= self._tries:
            raise DownloadError(f"{what}: {busy.why}", hint=hint) from busy
        self._pause(min(_MOST_WAIT_S, max(2.0**self._done / 4, busy.wait_s)))


Chunks = Callable[[RemoteFile, int, int], Iterator[bytes]]
"""Yields the bytes of a file from the first to the last in pieces, until the end or until the connection closes."""


def stream(
    chunks: Chunks,
    file: RemoteFile,
    first: int,
    last: int,
    take: Callable[[bytes], object],
    pause: Callable[[float], None],
) -> None:
    """Yield the bytes of a range in order; reconnect and continue after an interruption.

    Raises:
        ModelNotFound, DownloadError: they cannot be had.
    """
    at = counted = first
    patience, enough = Patience(pause), min(_PROGRESS_BYTES, (last - first) // 16)
    while at < last:
        try:
            for chunk in in_time(chunks(file, at, last)):
                take(chunk)
                at += len(chunk)
            busy = Busy(f"the connection ended after {at:,} of {last:,} bytes")
        except Busy as error:
            busy = error
        if at >= last:
            return
        # Else a server that sends one byte per request would be asked for ever.
        if at - counted > enough:
            counted, patience = at, Patience(pause)
        patience.wait(f"{file.name} cannot be fetched", busy, "the same command continues where it ended")


def in_time(chunks: Iterable[bytes], clock: Callable[[], float] = monotonic) -> Iterator[bytes]:
    """Yield what a connection delivers.

    Raises:
        Busy: the connection is too slow.
    """
    since, n_bytes = clock(), 0
    for chunk in chunks:
        n_bytes += len(chunk)
        yield chunk
        if n_bytes >= _SLOW_BYTES:
            since, n_bytes = clock(), 0
        elif clock() - since > _SLOW_S:
            raise Busy(f"the connection brought {n_bytes:,} bytes in {_SLOW_S:g} s")


def fetch(chunks: Chunks, file: RemoteFile, path: Path, pause: Callable[[float], None], on_stage: OnStage) -> None:
    """Write a whole file to ``path``, which may hold the beginning of it already, and check it.

    Raises:
        ModelNotFound, DownloadError: it cannot be had. DiskFull: there is no room for it. ``path`` then holds what has
            come so far, unless that is damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or not path.is_file():  # a link would be written through, a pipe would block
        path.unlink(missing_ok=True)
    # Unbuffered: received bytes survive however the process ends.
    with path.open("ab", buffering=0) as part:
        if part.tell() > file.n_bytes:
            part.truncate(0)
            part.seek(0)
        held = part.tell()
        require_room(path.parent, file.n_bytes - held, file.name)

        def write(chunk: bytes) -> None:
            nonlocal held
            view = memoryview(chunk)
            while view:
                view = view[part.write(view) :]
            held += len(chunk)
            on_stage("fetching", held)

        with disk_full_named(path.parent, lambda: file.n_bytes - held, file.name):
            stream(chunks, file, held, file.n_bytes, write, pause)
            # Flush first: after a power cut no name may exist without its content.
            os.fsync(part.fileno())
    is_whole = path.stat().st_size == file.n_bytes
    if not is_whole or (file.sha256 and sha256_of(path, lambda done: on_stage("checking", done)) != file.sha256):
        path.unlink()
        raise DownloadError(
            f"{file.name} was damaged on the way: its checksum is not the one that the hub states", hint="pull it again"
        )


def sha256_of(path: Path, on_bytes: Callable[[int], object] = lambda done: None) -> str:
    """Return the hash of a file, in hexadecimal digits; ``on_bytes`` is called with how far it is."""
    state, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            state.update(piece)
            done += len(piece)
            on_bytes(done)
    return state.hexdigest()


def require_room(folder: Path, n_bytes: int, what: str) -> None:
    """Raise if the disk lacks room for a file.

    Raises:
        DiskFull: there is too little room.
    """
    there = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(there).free
    if free < n_bytes:
        raise _disk_full(folder, n_bytes, free, what)


@contextmanager
def disk_full_named(folder: Path, needed_bytes: Callable[[], int], what: str) -> Iterator[None]:
    """Turn a full disk inside the block into ``DiskFull``, which names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _disk_full(folder, needed_bytes(), shutil.disk_usage(folder).free, what) from error


def _disk_full(folder: Path, needed_bytes: int, free: int, what: str) -> DiskFull:
    return DiskFull(
        f"{what} in {folder}",
        needed_bytes=needed_bytes,
        available_bytes=free,
        hint="free some space (`edge-spec rm`, `edge-spec cache clear`), or choose another folder with --model-dir",
    )
