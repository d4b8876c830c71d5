"""Where what was found out about models on this device is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge_spec.foreign import read_json
from edge_spec.models.beside import write_whole

__all__ = ["FOLDER", "read_record", "write_record"]

FOLDER = "probes"
"""In the cache directory."""


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
        write_whole(path, lambda name: Path(name).write_text(text, "utf-8"), durable=False)
