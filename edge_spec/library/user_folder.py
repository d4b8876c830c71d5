"""The user's own folders: settings, and models that are found by name.

A model there is ``NAME.gguf``, or a folder ``NAME`` with a manifest (see ``edge_spec.models.catalogue``), a GGUF or an
ONNX model.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge_spec.errors import SettingsError
from edge_spec.foreign import read_toml
from edge_spec.models.split_files import is_gguf

__all__ = ["configuration_path", "model_folder", "named_in", "read_settings"]

_ENDINGS = (".gguf", "")


def configuration_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's settings, which need not exist."""
    from platformdirs import user_config_path

    named = environment.get("EDGE_SPEC_CONFIG")
    return Path(named) if named else user_config_path("edge-spec") / "config.toml"


def read_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of the user's ``config.toml``; empty if there is none.

    Raises:
        SettingsError: the file cannot be read, or is not TOML.
    """
    path, is_named = configuration_path(environment), bool(environment.get("EDGE_SPEC_CONFIG"))
    if not is_named and not path.is_file():
        return {}
    try:
        return read_toml(path)
    except OSError as error:
        hint = "EDGE_SPEC_CONFIG names it" if is_named else "check its permissions"
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}", hint=hint) from None
    except ValueError as error:
        problem = "is not UTF-8 text" if isinstance(error, UnicodeError) else f"is not TOML: {error}"
        raise SettingsError(f"{path} {problem}", hint="correct it, or move it away") from None


def model_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for models that were downloaded or made on this computer; it need not exist.

    ``EDGE_SPEC_MODEL_DIR`` names it, or ``model-dir`` in the user's settings; else it is in the user's data.
    """
    from platformdirs import user_data_path

    settings: Mapping[str, Any] = {}
    # The command reports settings that cannot be read.
    with suppress(SettingsError):
        settings = read_settings(environment)
    given = environment.get("EDGE_SPEC_MODEL_DIR") or settings.get("model-dir", settings.get("model_dir"))
    return Path(given) if given and isinstance(given, str) else user_data_path("edge-spec") / "models"


def named_in(folder: Path, name: str) -> Path | None:
    """Return the model file or folder with a plain name; None if there is none, or if the name has several parts."""
    if not name or "\0" in name or Path(name).name != name or name.startswith("."):
        return None
    paths = (folder / (name + ending) for ending in _ENDINGS)
    try:
        found = next((path for path in paths if path.exists()), None)
        if found is None:
            # Other programs write the ending in capitals.
            others = (path for path in sorted(folder.iterdir()) if path.stem == name and is_gguf(path))
            found = next((path for path in others if path.is_file()), None)
        return found
    except OSError:  # too long, or no permission
        return None
