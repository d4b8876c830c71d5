"""Tell PyInstaller what a frozen program with edge-spec needs; an entry point names the hook."""

from __future__ import annotations

from pathlib import Path

__all__ = ["hook_folders"]


def hook_folders() -> list[str]:
    """Return the folder of the hook."""
    return [str(Path(__file__).parent)]
