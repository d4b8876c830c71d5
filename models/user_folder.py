"""The user's own model folder: what lies there is found by name.

``NAME.gguf``, or a folder ``NAME`` with a manifest (see ``edge_spec.models.catalogue``), a GGUF or an ONNX model.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

__all__ = ["configuration_path", "model_folder", "named_in"]

_ENDINGS = (".gguf", "")


def model_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where models belong that were fetched or made on this computer, whether or not there are any.

    ``EDGE_SPEC_MODEL_DIR`` names it, or ``model-dir`` in the user's ``config.toml``; else it is in the user's data.
    """
    from platformdirs import user_data_path

    given = environment.get("EDGE_SPEC_MODEL_DIR") or _configured(environment)
    return Path(given) if given else user_data_path("edge-spec") / "models"


def configuration_path(environment: Mapping[str, str]) -> Path:
    """Where the user's settings are, whether or not there are any."""
    from platformdirs import user_config_path

    named = environment.get("EDGE_SPEC_CONFIG")
    return Path(named) if named else user_config_path("edge-spec") / "config.toml"


def _configured(environment: Mapping[str, str]) -> str:
    """What the settings say; those that cannot be read are the command's to complain about."""
    try:
        settings = tomllib.loads(configuration_path(environment).read_text("utf-8"))
    except (OSError, ValueError):
        return ""
    found = settings.get("model-dir", settings.get("model_dir", ""))
    return found if isinstance(found, str) else ""


def named_in(folder: Path, name: str) -> Path | None:
    """The model file or folder of a plain name; None if there is none, or if the name is more than one."""
    if not name or "\0" in name or Path(name).name != name or name.startswith("."):
        return None
    paths = (folder / (name + ending) for ending in _ENDINGS)
    try:
        return next((path for path in paths if path.exists()), None)
    except OSError:  # too long, or no permission
        return None
