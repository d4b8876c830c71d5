"""The user's own model folder: what lies there is found by name.

``NAME.gguf``, or a folder ``NAME`` with a manifest (see ``edge_spec.models.catalogue``), a GGUF or an ONNX model.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["model_folder", "named_in"]

_ENDINGS = (".gguf", "")


def model_folder() -> Path:
    """Where models belong that were fetched or made on this computer, whether or not there are any."""
    from platformdirs import user_data_path

    return user_data_path("edge-spec") / "models"


def named_in(folder: Path, name: str) -> Path | None:
    """The model file or folder of a plain name; None if there is none, or if the name is more than one."""
    if not name or "\0" in name or Path(name).name != name or name.startswith("."):
        return None
    paths = (folder / (name + ending) for ending in _ENDINGS)
    try:
        return next((path for path in paths if path.exists()), None)
    except OSError:  # too long, or no permission
        return None
