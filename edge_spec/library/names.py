"""Rules for names of models and their files on this computer."""

from __future__ import annotations

import re

from edge_spec.errors import SettingsError

__all__ = ["file_called", "is_plain", "require_plain"]

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def is_plain(name: str) -> bool:
    """Return whether a name is safe on every system, in every folder and in every shell."""
    return _PLAIN.fullmatch(name) is not None


def require_plain(name: str) -> None:
    """Raise if a name is not plain.

    Raises:
        SettingsError: it is not plain.
    """
    if not is_plain(name):
        raise SettingsError(
            f"{name[:120]!r} cannot be the name of a model",
            hint="give it another one with --as NAME: letters, digits, dots, hyphens and underscores, at most 100, "
            "no dot or hyphen first",
        )


def file_called(name: str, role: str, number: int, total: int) -> str:
    """Return the local name of a GGUF: its remote name, or, if that is not plain, one made from its role.

    Args:
        number, total: which of how many files of its model it is, from 1.
    """
    part = f"-{number:05}-of-{total:05}" if total > 1 else ""
    return name if is_plain(name) else f"{role}{part}.gguf"
