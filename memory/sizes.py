"""Sizes of memory as text."""

from __future__ import annotations

import re

from edge_spec.errors import SettingsError

__all__ = ["format_size", "parse_size"]

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "ki": 1 << 10,
    "kib": 1 << 10,
    "kb": 1000,
    "m": 1 << 20,
    "mi": 1 << 20,
    "mib": 1 << 20,
    "mb": 1000**2,
    "g": 1 << 30,
    "gi": 1 << 30,
    "gib": 1 << 30,
    "gb": 1000**3,
    "t": 1 << 40,
    "ti": 1 << 40,
    "tib": 1 << 40,
    "tb": 1000**4,
}
_MAX_REPEATS = 1 << 60


def parse_size(text: str | int) -> int:
    """Bytes from ``2GiB``, ``2GB``, ``512MiB``, ``1.5g`` or plain bytes; a single letter counts in powers of 1,024.

    Raises:
        SettingsError: it is not a size, or not above 0.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        n_bytes = text
    else:
        found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) *([a-z]{0,3})", str(text).strip().lower(), re.ASCII)
        if found is None or found[2] not in _UNITS:
            raise SettingsError(
                f"is {str(text)[:32]!r}, which is not a size", argument="memory", hint="write 2GiB, 512MiB or 1.5g"
            )
        whole, _, part = found[1].partition(".")
        unit = _UNITS[found[2]]
        n_bytes = int(whole) * unit + (int(part) * unit // 10 ** len(part) if part else 0)
    if not 0 < n_bytes <= _MAX_REPEATS:
        what = "holds nothing" if n_bytes <= 0 else "is more than any computer has"
        raise SettingsError(f"is {str(text)[:32]}, which {what}", argument="memory", hint="write 2GiB, 512MiB or 1.5g")
    return n_bytes


def format_size(n_bytes: int) -> str:
    """MiB, or GiB from ten on, rounded up: the printed size is enough."""
    mib = -(-n_bytes // (1 << 20))
    return f"{mib:,} MiB" if mib < 10 << 10 else f"{mib / 1024:.1f} GiB"
