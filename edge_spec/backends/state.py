"""A saved cache: an engine's bytes in an envelope that tells damage and strangers."""

from __future__ import annotations

import struct
from hashlib import blake2b

from edge_spec.errors import StateError

__all__ = ["pack_state", "unpack_state"]

_ENVELOPE = struct.Struct("<8s32sQ16s")
_MAGIC = b"edgekv01"


def pack_state(body: bytes, *, n_past: int, profile: str) -> bytes:
    """Magic, profile name, number of tokens and a checksum over all but the magic, then the body."""
    name = profile.encode()
    return _ENVELOPE.pack(_MAGIC, name, n_past, _checksum(name, n_past, body)) + body


def _checksum(name: bytes, n_past: int, body: bytes) -> bytes:
    digest = blake2b(struct.pack("<32sQ", name, n_past), digest_size=16)
    digest.update(body)
    return digest.digest()


def unpack_state(state: bytes, *, profile: str) -> tuple[bytes, int]:
    """The body and its number of tokens.

    Raises:
        StateError: damaged, or saved under another numerics profile.
    """
    hint = "read the text again instead"
    if len(state) < _ENVELOPE.size:
        raise StateError("the saved state is damaged", hint=hint)
    magic, name, n_past, digest = _ENVELOPE.unpack_from(state)
    body = state[_ENVELOPE.size :]
    if magic != _MAGIC or _checksum(name, n_past, body) != digest:
        raise StateError("the saved state is damaged", hint=hint)
    saved = name.rstrip(b"\0").decode("utf-8", "replace")
    if saved != profile:
        raise StateError(f"the saved state belongs to the numerics profile {saved}, this is {profile}", hint=hint)
    return body, n_past
