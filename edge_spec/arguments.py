"""Arguments that are what they should be."""

from __future__ import annotations

import os
from typing import Any

from edge_spec.errors import SettingsError

__all__ = ["require_path", "require_whole"]


def require_whole(name: str, value: Any, least: int, most: int) -> None:
    """Refuse what is no whole number in a range.

    Raises:
        SettingsError: it is something else, a truth value included, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SettingsError(f"{name} is {value!r} and must be a whole number from {least} to {most}")


def require_path(name: str, value: Any) -> None:
    """Refuse what can be neither a name nor a path.

    Raises:
        SettingsError: it is no text and no ``os.PathLike``.
    """
    if not isinstance(value, str | os.PathLike):
        raise SettingsError(f"{name} is {value!r} and must be a name or a path")
