"""The content that a transcription was made of."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["is_of", "record_source"]

_SOURCE = "source.json"


def is_of(folder: Path, file: Path) -> bool:
    """Whether a transcription was made of exactly this content, which a fingerprint of samples cannot promise.

    To read all of a large file takes a second, so a file that was found equal counts as equal as long as its size and
    its modification time stay the same.
    """
    try:
        source = json.loads((folder / _SOURCE).read_text("utf-8"))
        content, seen = str(source["content"]), list(source["seen"])
        now = _seen(file)
        if now in seen:
            return True
        if _content(file) != content:
            return False
    except (OSError, ValueError, TypeError, KeyError):
        return False
    with contextlib.suppress(OSError):  # a cache that cannot be written is not a reason to fail
        _write(folder, {"content": content, "seen": [*seen[-7:], now]})
    return True


def record_source(folder: Path, file: Path) -> None:
    """Record what a transcription is made of."""
    _write(folder, {"content": _content(file), "seen": [_seen(file)]})


def _write(folder: Path, source: dict[str, Any]) -> None:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as note:
        json.dump(source, note)
    Path(note.name).replace(folder / _SOURCE)


def _seen(path: Path) -> list[int]:
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns]


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
