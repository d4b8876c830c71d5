"""Eviction from the cache of transcriptions.

Whenever a new one is written, these are removed:

- what a process left behind that ended too early (if made on another computer: not touched for a day),
- transcriptions of other versions that have not been used for a day,
- all that have not been used for 60 days.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import tempfile
import time
from pathlib import Path

__all__ = ["evict", "mark_used", "new_part", "remove"]

_STAMP = "source.json"
"""The file whose modification time says when a transcription was last used."""

_DAY_S = 86400.0
_UNUSED_S = 60 * _DAY_S


def new_part(cache_dir: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder for an unfinished transcription, named after this process; removed when its context ends."""
    return tempfile.TemporaryDirectory(prefix=f"{_owner()}{os.getpid()}-", dir=cache_dir, ignore_cleanup_errors=True)


def mark_used(folder: Path) -> None:
    """Note that a transcription is used now."""
    with contextlib.suppress(OSError):  # a cache that cannot be written is not a reason to fail
        os.utime(folder / _STAMP)


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
            if folder.name.startswith(".part-"):
                if _is_abandoned(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            made = re.fullmatch(r"[0-9a-f]{32}-(\w+-\d+)", folder.name)
            stamp = folder / _STAMP
            unused_s = time.time() - (stamp if stamp.exists() else folder).stat().st_mtime
            if made is not None and unused_s > (_UNUSED_S if made[1] == current else _DAY_S):
                remove(folder)
        except OSError:
            continue


def _owner() -> str:
    return f".part-{re.sub(r'[^A-Za-z0-9]', '', platform.node())[:32]}-"


def _is_abandoned(part: Path) -> bool:
    import psutil

    if part.name.startswith(_owner()):
        process = part.name.removeprefix(_owner()).partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            return True
    return time.time() - part.stat().st_mtime > _DAY_S
