"""Names of temporary files and locks next to a file.

They are short and of one length: a name that a file system takes at all has room for them beside it.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from pathlib import Path

__all__ = ["beside", "numbered"]

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
