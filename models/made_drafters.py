"""The drafter of a model on this computer: chosen by ``edge-spec pair``, or made by ``edge-spec drafter make``.

Both are in the user's data folder, ``drafters/FINGERPRINT``, the fingerprint being the target's (see ``inspect``): a
made one as ``drafter.gguf`` next to its card, a chosen one as ``chosen.json``, which names a file elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_spec.errors import ModelFileError
from edge_spec.models.inspection import inspect
from edge_spec.models.model_file import ModelFile

__all__ = ["choose_drafter", "chosen_drafter", "drafter_of", "forget_drafter", "made_drafter", "made_drafter_folder"]

_FILE, _CHOICE = "drafter.gguf", "chosen.json"


def made_drafter_folder(target: ModelFile) -> Path:
    """Where the drafter of a model belongs, whether or not there is one."""
    from platformdirs import user_data_path

    return user_data_path("edge-spec") / "drafters" / target.fingerprint


def made_drafter(target: ModelFile) -> Path | None:
    """The drafter that was made for a model; None if there is none."""
    path = made_drafter_folder(target) / _FILE
    return path if path.is_file() else None


def drafter_of(target: ModelFile) -> Path | None:
    """The drafter to use for a model where none is named: the chosen one, or else the made one."""
    return chosen_drafter(target) or made_drafter(target)


def chosen_drafter(target: ModelFile) -> Path | None:
    """The drafter that was chosen for a model; None if there is none, or if its file is gone or another one now."""
    try:
        choice = json.loads((made_drafter_folder(target) / _CHOICE).read_text("utf-8"))
        path, fingerprint = Path(choice["path"]), str(choice["fingerprint"])
        return path if inspect(path).fingerprint == fingerprint else None
    except (OSError, ValueError, LookupError, TypeError, ModelFileError):
        return None


def choose_drafter(target: ModelFile, drafter: ModelFile, measured: Mapping[str, Any]) -> Path:
    """Remember a drafter for a model; returns the file that holds the choice.

    Args:
        measured: what speaks for it, kept for people who look.

    Raises:
        OSError: it cannot be written.
    """
    path = made_drafter_folder(target) / _CHOICE
    path.parent.mkdir(parents=True, exist_ok=True)
    choice = {"path": str(drafter.path.resolve()), "fingerprint": drafter.fingerprint, "measured": dict(measured)}
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(choice, indent=1), "utf-8")
    temporary.replace(path)
    return path


def forget_drafter(target: ModelFile) -> bool:
    """Forget what was chosen for a model; whether there was something."""
    path = made_drafter_folder(target) / _CHOICE
    was_there = path.is_file()
    path.unlink(missing_ok=True)
    return was_there
