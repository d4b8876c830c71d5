"""What a run in a folder was begun with, so that the same command continues it and another one is refused."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from edge_spec.errors import ModelFileError, SettingsError
from edge_spec.training.checkpoint import whole_file

__all__ = ["begin_with", "read_json", "write_json"]


def begin_with(
    path: Path,
    asked: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Write the settings of a run.

    Args:
        path: where they are, in the run's folder.
        defaults: of settings that an older file does not have.
        only: names of those that must be as they were; None for all.

    Raises:
        SettingsError: the folder was begun with others. ModelFileError: the file is damaged.
    """
    begun = {**(defaults or {}), **read_json(path)} if path.is_file() else {}
    different = [name for name, value in begun.items() if asked.get(name) != value and (only is None or name in only)]
    if different:
        raise SettingsError(
            f"{path.parent} was begun with another {' and another '.join(sorted(different))}",
            hint=f"continue with what {path.name} in it says, or use another folder",
        )
    write_json(path, asked)


def write_json(path: Path, value: Any) -> None:
    """Write a value, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return what ``write_json`` has written.

    Raises:
        ModelFileError: the file is damaged.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged ({error})", hint="remove it and run again") from error
