"""What a conversation holds in memory."""

from __future__ import annotations

import psutil

from edge_spec.text_model import TextModel

__all__ = ["held_bytes", "memory_lines"]

_MIB = 1 << 20


def held_bytes() -> int:
    """Memory of this process."""
    return int(psutil.Process().memory_info().rss)


def memory_lines(model: TextModel) -> list[str]:
    """What ``/memory`` says."""
    process = psutil.Process().memory_info()
    device = psutil.virtual_memory()
    return [
        f"this process          {process.rss / _MIB:10,.1f} MiB",
        f"laid aside talks      {model.held_bytes / _MIB:10,.1f} MiB",
        f"free on this device   {device.available / _MIB:10,.1f} MiB of {device.total / _MIB:,.1f} MiB",
    ]
