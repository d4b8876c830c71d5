"""The bytes that the letters of a token stand for in byte-level vocabularies."""

from __future__ import annotations

import re

from edge_spec.tokens.byte_letters import BYTE_LETTERS

__all__ = ["bytes_of_letters", "bytes_of_marks"]

_BYTES = {letter: byte for byte, letter in BYTE_LETTERS.items()}
_FOREIGN = re.compile(f"[^{re.escape(''.join(_BYTES))}]")
_BEGIN, _END = b"[UNK_BYTE_0x", b"]"


def bytes_of_letters(text: bytes) -> bytes:
    """Return the bytes of a token's letters; letters without a byte are marked as in llama.cpp.

    A mark repeats the whole token.
    """
    found = bytearray()
    for letter in text.decode(errors="replace"):
        byte = _BYTES.get(letter)
        if byte is not None:
            found.append(byte)
        else:
            found += _BEGIN + letter.encode().hex().encode() + text + _END
    return bytes(found)


def bytes_of_marks(text: bytes, most: int) -> int:
    """Return how many of a token's bytes are marks; if more than ``most``, any number above it."""
    n = 0
    for letter in _FOREIGN.finditer(text.decode(errors="replace")):
        n += len(_BEGIN) + 2 * len(letter[0].encode()) + len(text) + len(_END)
        if n > most:
            break
    return n
