"""Starts Python where llama.cpp cannot be imported, as in an installation without the extra ``llama``."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["environment_without_llama"]


def environment_without_llama(home: Path) -> dict[str, str]:
    """Return an environment in which no process of Python, nor those that it starts, finds llama.cpp.

    Args:
        home: an empty folder for what edge-spec keeps; and for a module that Python imports at every start.
    """
    (home / "sitecustomize.py").write_text("import sys\nsys.modules['llama_cpp'] = None\n", encoding="utf-8")
    paths = (str(home), os.environ.get("PYTHONPATH", ""))
    folders = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(home))
    return {**os.environ, **folders, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
