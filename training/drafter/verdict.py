"""Whether a drafter pays on the device that has made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["pays", "verdict_of"]


def pays(measured: Mapping[str, Any]) -> bool:
    """Return whether ``auto`` is surely faster with it for one kind of text, and for none surely slower."""
    intervals = [found["gain"]["interval"] for found in measured.values()]
    return any(low > 1 for low, _ in intervals) and not any(high < 1 for _, high in intervals)


def verdict_of(measured: Mapping[str, Any]) -> str:
    """Return the same in a sentence, with what it rests on."""
    parts = []
    for kind, found in measured.items():
        (low, high), ratio = found["gain"]["interval"], found["gain"]["ratio"]
        parts.append(f"{ratio:.2f} times as fast ({kind}; 95 %: {low:.2f} to {high:.2f})")
    what = "It pays on this device" if pays(measured) else "It does not pay on this device, as far as that shows"
    return f"{what}: with it `auto` is {' and '.join(parts)} as without it."
