"""A saved cache: an engine's bytes in an envelope that shows damage, and which numerics profile they belong to."""

from __future__ import annotations

import struct
from hashlib import blake2b

from edge_spec.errors import Sentence, StateError

__all__ = ["pack_state", "restated", "unpack_state"]

_ENVELOPE = struct.Struct("<8s32sQ16s")
_MAGIC = b"edgekv01"
_HINT = "read the text again instead"


def pack_state(body: bytes, *, n_past: int, profile: str) -> bytes:
    """Magic, profile name, number of tokens and a checksum over all but the magic, then the body."""
    name = profile.encode()
    return _ENVELOPE.pack(_MAGIC, name, n_past, _checksum(name, n_past, body)) + body


def _checksum(name: bytes, n_past: int, body: bytes) -> bytes:
    digest = blake2b(struct.pack("<32sQ", name, n_past), digest_size=16)
    digest.update(body)
    return digest.digest()


def unpack_state(state: bytes, *, profile: str, n_ctx: int) -> tuple[bytes, int]:
    """Return the body and its number of tokens.

    Raises:
        StateError: damaged, saved under another numerics profile, or more tokens than a context of ``n_ctx`` holds.
    """
    body, n_past, saved = _opened(state)
    if saved != profile:
        raise StateError(f"the saved state belongs to the numerics profile {saved}, this is {profile}", hint=_HINT)
    if n_past > n_ctx:
        raise StateError(
            f"the saved state holds {n_past} tokens and the context {n_ctx}", hint=Sentence("raise {n_ctx}")
        )
    return body, n_past


def restated(state: bytes, *, profile: str) -> bytes:
    """Return the same state under another profile, for callers that know that its cells mean the same there.

    Raises:
        StateError: damaged.
    """
    body, n_past, _ = _opened(state)
    return pack_state(body, n_past=n_past, profile=profile)


def _opened(state: bytes) -> tuple[bytes, int, str]:
    """Body, number of tokens and profile."""
    if len(state) < _ENVELOPE.size:
        raise StateError("the saved state is damaged", hint=_HINT)
    magic, name, n_past, digest = _ENVELOPE.unpack_from(state)
    body = state[_ENVELOPE.size :]
    if magic != _MAGIC or _checksum(name, n_past, body) != digest:
        raise StateError("the saved state is damaged", hint=_HINT)
    return body, n_past, name.rstrip(b"\0").decode("utf-8", "replace")
