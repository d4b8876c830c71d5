"""Argument validation."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from edge_spec.errors import SettingsError

__all__ = ["refuse_unknown", "require_one_of", "require_path", "require_whole"]

_UNLIMITED = (1 << 31) - 1
"""Limits from here on only keep numbers within what C can hold; they are not worth telling."""


def require_whole(name: str, value: Any, least: int, most: int) -> None:
    """Refuse anything but a whole number from ``least`` to ``most``.

    Raises:
        SettingsError: it is something else, a truth value included, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        is_too_large = isinstance(value, int) and value > most
        wanted = f"from {least} to {most:,}" if most < _UNLIMITED or is_too_large else f"{least} or more"
        raise SettingsError(f"is {value!r} and must be a whole number {wanted}", argument=name)


def require_one_of(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse anything but one of the choices.

    Raises:
        SettingsError: it is something else.
    """
    known = tuple(choices)
    if value not in known:
        raise SettingsError(f"is {value!r} and must be one of {', '.join(known)}", argument=name)


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse settings of other names, with the one that may be meant.

    Raises:
        SettingsError: there are some.
    """
    names = sorted(known)
    unknown = sorted(set(given) - set(names))
    if not unknown:
        return
    from difflib import get_close_matches

    near = [
        each
        for name in unknown
        for each in [other for other in names if other.startswith(name)] or get_close_matches(name, names, 2)
    ]
    hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else f"known are {', '.join(names)}"
    raise SettingsError(f"unknown setting {', '.join(unknown)}", hint=hint)


def require_path(name: str, value: Any) -> None:
    """Refuse what can be neither a name nor a path.

    Raises:
        SettingsError: it is neither text nor an ``os.PathLike``.
    """
    if not isinstance(value, str | os.PathLike):
        raise SettingsError(f"is {value!r} and must be a name or a path", argument=name)
