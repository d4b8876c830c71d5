"""The wire format of protobuf, of which ONNX files are made: fields written, and messages read from untrusted files.

The format is that of https://protobuf.dev/programming-guides/encoding. Reading leaves large values where they are:
ONNX files can be larger than memory, so nothing is read that is not asked for, and every length is checked before
anything is read by it. The ``onnx`` package takes 12 MiB and reads all weights of a file that holds them into memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edge_spec.errors import NotAModel

__all__ = ["ELEMENT_NUMBERS", "ELEMENT_TYPES", "Span", "WireFile", "bytes_field", "float_field", "int_field"]

_MAX_TEXT_BYTES = 1 << 16

_HEAD_BYTES = 20
"""The start of a field: two numbers of at most ten bytes each."""


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def int_field(number: int, value: int) -> bytes:
    """Return a field that holds an integer."""
    return _varint(number << 3) + _varint(value)


def float_field(number: int, value: float) -> bytes:
    """Return a field that holds a 32-bit float."""
    return _varint(number << 3 | 5) + struct.pack("<f", value)


def bytes_field(number: int, value: bytes | str) -> bytes:
    """Return a field that holds bytes, a text or another message."""
    value = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


@dataclass(frozen=True, slots=True)
class Span:
    """The range of a value of variable length in its file."""

    start: int
    end: int

    @property
    def n_bytes(self) -> int:
        """Its size."""
        return self.end - self.start


class WireFile:
    """A file of protobuf messages, open for reading."""

    def __init__(self, file: BinaryIO, path: Path, file_bytes: int) -> None:
        self._file = file
        self.path = path
        self.whole = Span(0, file_bytes)

    def read(self, span: Span) -> bytes:
        """Return the bytes of a value; fewer if the file has shrunk."""
        self._file.seek(span.start)
        return self._file.read(max(span.n_bytes, 0))

    def text(self, span: Span) -> str:
        """Return a value as text.

        Raises:
            NotAModel: it is not a text, or longer than any name.
        """
        if span.n_bytes > _MAX_TEXT_BYTES:
            raise self.damaged(f"a name of {span.n_bytes:,} bytes")
        try:
            return self.read(span).decode()
        except UnicodeDecodeError:
            raise self.damaged("a name that is not a text") from None

    def fields(self, message: Span) -> Iterator[tuple[int, int | Span]]:
        """Number and value of each field of a message: an integer, or where a longer value is.

        Raises:
            NotAModel: the bytes are not a message, or a value extends beyond it.
        """
        at = message.start
        while at < message.end:
            head = self.read(Span(at, min(at + _HEAD_BYTES, message.end)))
            tag, used = self._number(head, 0)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise self.damaged("a field without a number")
            value: int | Span
            if kind == 0:
                value, used = self._number(head, used)
                at += used
            elif kind == 2:
                n_bytes, used = self._number(head, used)
                value = Span(at + used, at + used + n_bytes)
                at = value.end
            elif kind in (1, 5):
                value = Span(at + used, at + used + (8 if kind == 1 else 4))
                at = value.end
            else:
                raise self.damaged(f"a field of kind {kind}")
            if at > message.end:
                raise self.damaged(f"a field that is {at - message.end:,} bytes too long")
            yield number, value

    def numbers(self, value: int | Span) -> list[int]:
        """Return the integers of a repeated field, packed or not."""
        if isinstance(value, int):
            return [signed(value)]
        raw, at, found = self.read(value), 0, []
        while at < len(raw):
            number, at = self._number(raw, at)
            found.append(signed(number))
        return found

    def damaged(self, what: str) -> NotAModel:
        """Return the error for a file that contradicts itself."""
        return NotAModel(f"{self.path} is not a readable ONNX file ({what})", hint="download or export the model again")

    def _number(self, raw: bytes, at: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if at >= len(raw):
                break
            byte = raw[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
        raise self.damaged("a number without an end")


def signed(value: int) -> int:
    """Return a number as a signed one: protobuf writes negative numbers as unsigned 64-bit numbers."""
    return value - (1 << 64) if value >= 1 << 63 else value


ELEMENT_TYPES = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", 0),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    16: ("bfloat16", 16),
    21: ("uint4", 4),
    22: ("int4", 4),
}
"""Number -> (name, as NumPy has it, and bits)."""

ELEMENT_NUMBERS = {name: number for number, (name, _) in ELEMENT_TYPES.items()}
