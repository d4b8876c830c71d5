"""What things will take, in bytes, before they are asked for."""

from __future__ import annotations

from edge_spec.errors import OutOfMemory
from edge_spec.memory.device import Device

__all__ = ["require", "vocabulary_bytes"]


def vocabulary_bytes(n_tokens: int, n_merges: int) -> int:
    """What llama.cpp's tables for text and tokens take.

    Fitted to ten vocabularies of 32,000 to 262,144 tokens, within 7 % of each that has merges.
    """
    if n_merges:
        return (1 << 19) + 258 * n_tokens + 89 * n_merges
    return (1 << 19) + 160 * n_tokens


def require(what: str, needed_bytes: int, device: Device, hint: str) -> None:
    """Refuse what does not fit.

    Args:
        what: the thing, as the beginning of a sentence: "the KV cache for 32768 tokens".
        hint: what to do instead.

    Raises:
        OutOfMemory: ``needed_bytes`` are more than the device has available.
    """
    if needed_bytes > device.available_bytes:
        raise OutOfMemory(what, needed_bytes=needed_bytes, available_bytes=device.available_bytes, hint=hint)
