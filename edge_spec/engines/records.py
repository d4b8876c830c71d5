"""Where what was found out about models on this device is kept."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge_spec.foreign import read_json

__all__ = ["FOLDER", "read_record", "write_record", "write_whole"]

FOLDER = "probes"
"""In the cache directory."""

_PART = "tmp"
_ABANDONED_S = 86400.0


def read_record(path: Path) -> dict[str, Any]:
    """Return a JSON record; empty if there is none, or it is damaged."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_record(path: Path, record: Mapping[str, object]) -> None:
    """Write a JSON record, whole or not at all; a folder that cannot be written is no reason to fail."""
    text = json.dumps(record)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


def write_whole(path: Path, text: str) -> None:
    """Write a text, whole or not at all, and remove what processes left beside it that were killed meanwhile.

    Raises:
        OSError: it cannot be written.
    """
    for left_over in path.parent.glob(f"{_PART}*"):
        # No running process takes so long.
        with suppress(OSError):
            if time.time() - left_over.stat().st_mtime > _ABANDONED_S:
                left_over.unlink()
    handle, name = tempfile.mkstemp(prefix=_PART, dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
