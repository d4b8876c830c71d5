"""The folder of transcriptions: room on its disk, what each was made of, and eviction.

Whenever a new one is written, these are removed:

- what a process left behind that ended too early (if made on another computer: not touched for a day),
- transcriptions of other versions that have not been used for a day,
- all that have not been used for 60 days.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edge_spec.engines.registry import use
from edge_spec.errors import BAD_RECORD, DiskFull, ModelFileError, Sentence
from edge_spec.foreign import read_json
from edge_spec.models.beside import write_whole
from edge_spec.models.model_file import ModelFile

__all__ = [
    "check_space",
    "disk_full",
    "evict",
    "existing",
    "has_room_for_files",
    "is_of",
    "mark_used",
    "new_part",
    "record_source",
    "record_whole",
    "remove",
    "require_name",
    "transcriptions_in",
    "was_whole",
]

_SOURCE = "source.json"
"""What a transcription was made of; the modification time of this file says when it was last used."""

_WHOLE = "whole.json"
"""When the weights were last written to, as the system told when they were found whole."""

_PART = ".part-"

_NAME = re.compile(r"[0-9a-f]{32}-(\w+-\d+)")
"""The fingerprint of a model file, and the version of what was made of it."""

_DAY_S = 86400.0
_UNUSED_S = 60 * _DAY_S


def require_name(folder: Path) -> None:
    """Refuse a cache folder that ONNX Runtime cannot open.

    Raises:
        ModelFileError: its name is not UTF-8.
    """
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise ModelFileError(
            f"the cache folder {folder} has a name that is not UTF-8, and ONNX Runtime opens no such files",
            hint=Sentence("give another {cache_dir}, or {use}", use=use("llama")),
        ) from None


def existing(folder: Path) -> Path:
    """Return a folder, or the first of those that it lies in that there is, as far as one may look."""
    for each in (folder, *folder.absolute().parents):
        with contextlib.suppress(OSError):
            if each.exists():
                return each
    return Path(folder.anchor)


def has_room_for_files(folder: Path) -> bool:
    """Return whether the disk of a folder has room for another file, however small."""
    if not hasattr(os, "statvfs"):
        return True
    found = os.statvfs(existing(folder))
    return found.f_files == 0 or found.f_favail > 0


def check_space(file: ModelFile, folder: Path, n_bytes: int) -> None:
    """Refuse a transcription that does not fit on the disk of a folder.

    Raises:
        DiskFull: there is less room.
    """
    if shutil.disk_usage(folder).free < n_bytes:
        raise disk_full(file, folder, n_bytes)


def disk_full(file: ModelFile, folder: Path, n_bytes: int) -> DiskFull:
    """Return the error that says that it does not fit."""
    return DiskFull(
        f"the ONNX form of {file.path.name} in {folder}",
        needed_bytes=n_bytes,
        available_bytes=shutil.disk_usage(existing(folder)).free,
        hint=Sentence("free some space, or {use}", use=use("llama")),
    )


def is_of(folder: Path, files: Sequence[Path]) -> bool:
    """Return whether a transcription was made of exactly this content, which a fingerprint of samples cannot promise.

    To read all of a large file takes a second, so files that were found equal count as equal as long as their sizes
    and their modification times stay the same.
    """
    try:
        source = read_json(folder / _SOURCE)
        content, seen = str(source["content"]), list(source["seen"])
        now = _seen(files)
        if now in seen:
            return True
        if _content(files) != content:
            return False
    except (OSError, *BAD_RECORD):
        return False
    with contextlib.suppress(OSError):  # a cache that cannot be written is not a reason to fail
        _write(folder, {"content": content, "seen": [*seen[-7:], now], "name": files[0].name})
    return True


def record_source(folder: Path, files: Sequence[Path]) -> None:
    """Record what a transcription is made of: the files of a model."""
    _write(folder, {"content": _content(files), "seen": [_seen(files)], "name": files[0].name})


def was_whole(weights: Path) -> bool:
    """Return whether nobody has written to a file since ``record_whole``, as far as its system tells.

    Raises:
        OSError: there is no such file.
    """
    now = _changed(weights)
    try:
        return bool(read_json(weights.with_name(_WHOLE)) == now)
    except (OSError, *BAD_RECORD):
        return False


def record_whole(weights: Path) -> None:
    """Record that a file is whole as it is now."""
    with contextlib.suppress(OSError):  # a cache that cannot be written is not a reason to fail
        text = json.dumps(_changed(weights))
        write_whole(weights.with_name(_WHOLE), lambda name: Path(name).write_text(text, "utf-8"), durable=False)


def _changed(path: Path) -> list[int]:
    """Return what changes with the content of a file: no program can set the last of these times but on Windows."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _write(folder: Path, source: dict[str, Any]) -> None:
    write_whole(folder / _SOURCE, lambda name: Path(name).write_text(json.dumps(source), "utf-8"), durable=False)


def _seen(files: Sequence[Path]) -> list[int]:
    facts = [path.stat() for path in files]
    return [number for each in facts for number in (each.st_size, each.st_mtime_ns)]


def _content(files: Sequence[Path]) -> str:
    state = hashlib.blake2b(digest_size=16)
    for path in files:
        with path.open("rb") as file:
            # It goes on with what it is given.
            hashlib.file_digest(file, lambda: state)
    return state.hexdigest()


def transcriptions_in(cache_dir: Path) -> Iterator[tuple[str, Path]]:
    """Yield the transcriptions in a folder, and what processes have left of unfinished ones: the name of each one's
    model file, and its own folder."""
    for folder in sorted(cache_dir.iterdir()) if cache_dir.is_dir() else ():
        if folder.name.startswith(_PART) and _is_abandoned(folder):
            yield "unfinished", folder
        if _NAME.fullmatch(folder.name):
            try:
                name = str(read_json(folder / _SOURCE).get("name", ""))
            except (OSError, ValueError, AttributeError):
                name = ""
            yield name, folder


def new_part(cache_dir: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a folder for an unfinished transcription, named after this process; removed when its context ends."""
    return tempfile.TemporaryDirectory(prefix=f"{_owner()}{os.getpid()}-", dir=cache_dir, ignore_cleanup_errors=True)


def mark_used(folder: Path) -> None:
    """Note that a transcription is used now."""
    with contextlib.suppress(OSError):  # a cache that cannot be written is not a reason to fail
        os.utime(folder / _SOURCE)


def remove(folder: Path) -> None:
    """Remove a folder; no process ever sees half of it.

    Raises:
        OSError: it cannot be moved away, as on Windows while it is read.
    """
    with new_part(folder.parent) as out:
        folder.rename(Path(out) / "old")


def evict(cache_dir: Path, current: str) -> None:
    """Remove what is to be removed.

    Args:
        current: how the names of folders of this version end.
    """
    for folder in list(cache_dir.iterdir()):
        try:
            if folder.name.startswith(_PART):
                if _is_abandoned(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            made = _NAME.fullmatch(folder.name)
            stamp = folder / _SOURCE
            unused_s = time.time() - (stamp if stamp.exists() else folder).stat().st_mtime
            if made is not None and unused_s > (_UNUSED_S if made[1] == current else _DAY_S):
                remove(folder)
        except OSError:
            continue


def _owner() -> str:
    return f"{_PART}{re.sub(r'[^A-Za-z0-9]', '', platform.node())[:32]}-"


def _is_abandoned(part: Path) -> bool:
    import psutil

    if part.name.startswith(_owner()):
        process = part.name.removeprefix(_owner()).partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            return True
    return time.time() - part.stat().st_mtime > _DAY_S
