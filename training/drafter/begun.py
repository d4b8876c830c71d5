"""Settings that a run in a folder was begun with: the same command continues it, and another one is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from edge_spec.errors import SettingsError
from edge_spec.training.checkpoint import read_json, write_json

__all__ = ["begin_with"]


def begin_with(
    path: Path,
    asked: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Write the settings of a run, unless its folder was begun with others.

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
