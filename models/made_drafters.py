"""Drafters that ``edge-spec drafter make`` has made on this computer, found by the model that they were made for.

They are in the user's data folder, ``drafters/FINGERPRINT/drafter.gguf``, each beside its card. The fingerprint is the
target's (see ``inspect``).
"""

from __future__ import annotations

from pathlib import Path

from edge_spec.models.model_file import ModelFile

__all__ = ["made_drafter", "made_drafter_folder"]

_FILE = "drafter.gguf"


def made_drafter_folder(target: ModelFile) -> Path:
    """Where the drafter of a model belongs, whether or not there is one."""
    from platformdirs import user_data_path

    return user_data_path("edge-spec") / "drafters" / target.fingerprint


def made_drafter(target: ModelFile) -> Path | None:
    """The drafter that was made for a model; None if there is none."""
    path = made_drafter_folder(target) / _FILE
    return path if path.is_file() else None
