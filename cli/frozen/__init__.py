"""Tells PyInstaller what a frozen program with edge-spec needs; its hook is found by an entry point."""

from __future__ import annotations

from pathlib import Path

__all__ = ["hook_folders"]


def hook_folders() -> list[str]:
    """Return where the hook is."""
    return [str(Path(__file__).parent)]
