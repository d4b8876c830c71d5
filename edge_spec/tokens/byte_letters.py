"""The letters of byte-level vocabularies."""

from __future__ import annotations

__all__ = ["BYTE_LETTERS"]

_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_LETTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + n) for n, byte in enumerate(_UNPRINTABLE)}
"""The letter that stands for each byte in byte-level vocabularies, as in GPT-2: printable ones for themselves."""
