"""Read the numbers and the table of kinds of weights that Python and C share, from the header that C compiles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FLOATS", "NUMBERS", "PACKED_KINDS", "PackedKind"]

_TEXT = Path(__file__).with_name("src").joinpath("shared.h").read_text("utf-8")

NUMBERS = {name: int(value) for name, value in re.findall(r"ER_(\w+) = (\d+),", _TEXT)}


@dataclass(frozen=True, kw_only=True)
class PackedKind:
    """The packing of a kind of weights: a row of the table.

    Attributes:
        is_float: whether they are floats, which only change places.
        bits: of a code.
        head_bytes: per unit of 16 outputs x ``n_blocks`` blocks.
        subscale_bytes: per block.
    """

    is_float: bool
    bits: int
    head_bytes: int
    subscale_bytes: int
    n_blocks: int

    @property
    def unit_bytes(self) -> int:
        """Of 16 outputs x one block of GGUF."""
        if self.is_float:
            return NUMBERS["GROUP"] * self.bits // 8
        return self.head_bytes + self.n_blocks * (self.subscale_bytes + 2 * NUMBERS["BLOCK"] * self.bits)


def _read(row: str) -> PackedKind:
    form, bits, _, _, _, subscale_bytes, n_blocks, _ = row.split(", ")
    return PackedKind(
        is_float=form == "PLAIN",
        bits=int(bits),
        head_bytes=64 if form in ("MINIMUM", "MINIMA") else 32,
        subscale_bytes=int(subscale_bytes),
        n_blocks=int(n_blocks),
    )


PACKED_KINDS = {name: _read(row) for name, row in re.findall(r"KIND\((\w+), \d+, (.+)\)", _TEXT)}
"""By GGUF's name of the type."""

FLOATS = tuple(name for name, kind in PACKED_KINDS.items() if kind.is_float)
