"""Reading the header of a GGUF from front to back.

The file is untrusted: it may be cut off, damaged or malicious. Every length is checked against the size of the file
before anything is read or allocated by it, so memory stays below ``MAX_HEADER_BYTES`` whatever the file claims. Plain
reads instead of a memory map: with a file that shrinks or a card with bad sectors they raise, where a map would kill
the process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edge_spec.errors import ModelNotFound, NotAModel, TruncatedModel, UnsupportedModel

__all__ = ["ARRAY", "MAX_HEADER_BYTES", "STRING", "VALUE_TYPES", "Cursor", "GGUFArray", "damaged", "truncated"]

MAX_HEADER_BYTES = 64 << 20
"""More than any header needs: a vocabulary of 262k tokens with its merges takes 16 MiB."""

VALUE_TYPES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF value type -> ``struct`` code, for the types of fixed size."""

STRING = 8
ARRAY = 9

_FIRST_READ_BYTES = 1 << 16
_U64 = struct.Struct("<Q")


def damaged(path: Path, what: str) -> NotAModel:
    """Return the error for a header that contradicts itself."""
    return NotAModel(f"{path} has a damaged header ({what})", hint="download or convert the model again")


def truncated(path: Path, missing_bytes: int) -> TruncatedModel:
    """Return the error for a file that ends ``missing_bytes`` too early."""
    return TruncatedModel(
        f"{path} ends too early, at least {missing_bytes:,} {'byte is' if missing_bytes == 1 else 'bytes are'} missing",
        hint="download or copy it again and compare the file sizes",
    )


@dataclass(frozen=True, kw_only=True)
class GGUFArray:
    """An array in a header that stays in the file: vocabularies are large and rarely needed.

    Attributes:
        path: the file.
        element_type: GGUF value type of the elements; ``STRING`` or a key of ``VALUE_TYPES``.
        length: number of elements.
        offset: where the first element begins, in bytes from the start of the file.
        n_bytes: size of all elements, including the lengths of strings.
    """

    path: Path
    element_type: int
    length: int
    offset: int
    n_bytes: int

    def raw(self) -> bytes:
        """Return the bytes as they are in the file, ``[n_bytes]``.

        Raises:
            ModelNotFound, TruncatedModel: the file was removed or cut off since its header was read.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(self.n_bytes)
        except OSError as error:
            raise ModelNotFound(f"{self.path} cannot be read ({error.strerror})", hint="was it moved?") from error
        if len(data) < self.n_bytes:
            raise truncated(self.path, self.n_bytes - len(data))
        return data

    def decode(self) -> tuple[int, ...] | tuple[float, ...] | tuple[bool, ...] | tuple[str, ...]:
        """Return the elements, ``[length]``. Bytes of a string that are not UTF-8 become U+FFFD."""
        if self.element_type != STRING:
            return struct.unpack(f"<{self.length}{VALUE_TYPES[self.element_type]}", self.raw())
        return tuple(text.decode(errors="replace") for text in self.texts())

    def texts(self) -> Iterator[bytes]:
        """Yield the elements, which are strings, as they are in the file."""
        data = self.raw()
        unpack = _U64.unpack_from
        at = 0
        for _ in range(self.length):
            if at + 8 > len(data):
                raise damaged(self.path, "an array changed while it was read")
            end = at + 8 + unpack(data, at)[0]
            yield data[at + 8 : end]
            at = end


class Cursor:
    """A position in a file that only moves forward.

    Every method raises ``TruncatedModel`` when it would pass the end of the file, and ``UnsupportedModel``
    when it would pass ``MAX_HEADER_BYTES``.
    """

    def __init__(self, file: BinaryIO, path: Path, file_bytes: int) -> None:
        self._file = file
        self._data = b""
        self.path = path
        self.file_bytes = file_bytes
        self.at = 0

    def require(self, n_bytes: int) -> None:
        """Check that the file holds ``n_bytes`` more, without reading them."""
        if n_bytes > self.file_bytes - self.at:
            raise truncated(self.path, n_bytes - (self.file_bytes - self.at))
        if n_bytes > MAX_HEADER_BYTES - self.at:
            raise UnsupportedModel(
                f"{self.path} has a header of more than {MAX_HEADER_BYTES >> 20} MiB",
                hint="no known model needs that, check where the file comes from",
            )

    def _fetch(self, n_bytes: int) -> None:
        """Make sure that the next ``n_bytes`` are in memory."""
        self.require(n_bytes)
        held = len(self._data)
        if self.at + n_bytes > held:
            # Twice as much each time: reading stays linear in the size of the header.
            self._data += self._file.read(max(self.at + n_bytes - held, held, _FIRST_READ_BYTES))
            if self.at + n_bytes > len(self._data):
                raise truncated(self.path, self.at + n_bytes - len(self._data))

    def take(self, n_bytes: int) -> bytes:
        """Return the next ``n_bytes``."""
        self._fetch(n_bytes)
        self.at += n_bytes
        return self._data[self.at - n_bytes : self.at]

    def number(self, code: str) -> int | float | bool:
        """Return the next little-endian number of ``struct`` type ``code``."""
        size = struct.calcsize(f"<{code}")
        value: int | float | bool = struct.unpack(f"<{code}", self.take(size))[0]
        return value

    def integer(self, code: str) -> int:
        """Return the next little-endian integer of ``struct`` type ``code``."""
        return int(self.number(code))

    def text(self) -> bytes:
        """Return the next string, undecoded."""
        return self.take(self.integer("Q"))

    def name(self, kind: str) -> str:
        """Return the next string, which is the name of a ``kind`` and must be UTF-8."""
        raw = self.text()
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise damaged(self.path, f"the name of a {kind} is not text") from error

    def array(self) -> GGUFArray:
        """Return the next array, skipped."""
        element_type = self.integer("I")
        length = self.integer("Q")
        start = self.at
        if element_type == STRING:
            self._skip_texts(length)
        elif element_type in VALUE_TYPES:
            n_bytes = length * struct.calcsize(f"<{VALUE_TYPES[element_type]}")
            self.require(n_bytes)
            self.at += n_bytes
        else:
            raise damaged(self.path, f"an array of elements of type {element_type}")
        return GGUFArray(
            path=self.path, element_type=element_type, length=length, offset=start, n_bytes=self.at - start
        )

    def _skip_texts(self, n: int) -> None:
        self.require(8 * n)
        unpack = _U64.unpack_from
        start = 0
        while start < n:
            data, at = self._data, self.at
            # The hot loop of the reader, 300k iterations for a vocabulary of 152k: each length must be read to find
            # the next. When the data in memory ends, an exception leaves it, and more is read.
            try:
                for index in range(start, n):  # noqa: B007
                    at += 8 + unpack(data, at)[0]
                start = n
            except (struct.error, OverflowError):
                start = index
            self.require(at - self.at)
            self.at = at
            if start < n:
                self._fetch(8)
