"""The usual draw in C: top-k, top-p, min-p and temperature, of at most 96 candidates.

A draw in Python takes several times as long, which small models notice. Python (``candidates``, ``Sampler``) is the
reference: tests compare both, bit for bit. It also draws whatever C leaves to it: other filters, grammars, more
candidates, and everything where the package was installed without a compiler.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.sampling.adjustments import Changes
from edge_spec.sampling.candidates import Row
from edge_spec.sampling.filters import EARLY, FEW, LATE
from edge_spec.sampling.settings import SamplerSettings
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["LEFT", "NativeDraw", "Rows", "native_draw", "native_guesses"]

Rows = npt.NDArray[np.float32]
"""Rows of logits, ``[n, n_vocab]``."""

_FLOAT32 = np.dtype(np.float32)

_FILE = Path(__file__).parent / ("draw" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))


class _DrawSettings(ctypes.Structure):
    _fields_ = (
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_double),
        ("temperature", ctypes.c_double),
        ("deepest", ctypes.c_double),
    )


class _Changes(ctypes.Structure):
    _fields_ = (("n", ctypes.c_int64), ("columns", ctypes.c_int32 * FEW), ("amounts", ctypes.c_float * FEW))


_ROW = struct.Struct("PqQqPPP0q")
"""``struct asked``: packing it takes a tenth of what a Structure takes."""

_FOUND = struct.Struct("qd")
"""``struct found``."""

LEFT = bytes(_ROW.size)
"""Marks a row for Python: C finds no columns in it."""


class NativeDraw:
    """``src/draw.c`` with fixed settings."""

    def __init__(self, library: Any, settings: SamplerSettings, kept: KeptTokens | None) -> None:
        deepest = -math.log(settings.min_p) if settings.min_p > 0 else math.inf
        self._library = library
        self._settings = _DrawSettings(settings.top_k, settings.top_p, settings.temperature, deepest)
        # The last ones, which most often are used again.
        self._changes: Changes | None = None
        self._own_changes = _Changes()
        # C reads these as long as this object lives.
        self._tokens = None if kept is None else np.ascontiguousarray(kept.ids, np.int64)
        self._n_columns = None if kept is None else len(kept)
        self._rest = (0 if self._tokens is None else self._tokens.ctypes.data, ctypes.addressof(self._settings))

    def asked(
        self, rows: Rows, stream: int, index: int, held: list[object], changes: Changes | None = None
    ) -> list[bytes]:
        """Return ``struct asked`` for each of some rows, ``[n, n_vocab]``; ``LEFT`` where Python draws.

        Args:
            stream, index: of the noise, and the place of the token in the reply.
            held: gets what C reads besides the rows; to be kept as long as it does.
            changes: what is added to logits of each row before.
        """
        n, n_columns = rows.shape
        contiguous = rows.dtype == _FLOAT32 and rows.strides[1] == _FLOAT32.itemsize
        if not contiguous or self._n_columns not in (None, n_columns):
            return [LEFT] * n
        if changes is None:
            by = 0
        elif len(changes[0]) > FEW:
            return [LEFT] * n
        else:
            own = self._written(changes)
            held.append(own)
            by = ctypes.addressof(own)
        address, step, rest = rows.__array_interface__["data"][0], rows.strides[0], self._rest
        return [_ROW.pack(address + row * step, n_columns, stream, index, by, *rest) for row in range(n)]

    def _written(self, changes: Changes) -> _Changes:
        if changes is not self._changes:
            columns, amounts = changes
            n = len(columns)
            # Not in place: C may still read earlier rows with their own.
            self._own_changes = own = _Changes(n)
            own.columns[:n], own.amounts[:n] = columns, amounts
            self._changes = changes
        return self._own_changes

    def pick(self, row: Row, stream: int, index: int, changes: Changes | None = None) -> int:
        """Return the token drawn from a row, ``[n_vocab]``; -1 if Python has to draw. See ``asked``."""
        (asked,) = self.asked(row[None], stream, index, [], changes)
        token: int = self._library.edge_pick_3(asked)
        return token


def native_guesses(rows: Sequence[bytes], n: int) -> list[list[tuple[int, float]]]:
    """Return ``Sampler.guess`` for rows of any draws; nothing for rows that Python has to draw.

    Args:
        rows: what ``NativeDraw.asked`` has returned.
    """
    library, n_rows, most = _library(), len(rows), min(n, FEW)
    if library is None:
        return [[] for _ in rows]
    # An array of ctypes would need a type of its own for every length, which takes longer than the call.
    memory = np.empty(n_rows * most * 2)
    library.edge_guess_2(n_rows, b"".join(rows), most, memory.__array_interface__["data"][0])
    found = list(_FOUND.iter_unpack(memory.data))
    if most == 1:
        return [[each] if each[0] >= 0 else [] for each in found]
    return [[each for each in found[first : first + most] if each[0] >= 0] for first in range(0, n_rows * most, most)]


def native_draw(settings: SamplerSettings, kept: KeptTokens | None = None) -> NativeDraw | None:
    """Return the draw in C; None if it was not built, or lacks a transform that these settings use.

    Args:
        kept: the tokens of the columns of its rows; None for all.
    """
    library = _library()
    unusual = any(each.is_on(settings) for each in (*EARLY, *LATE)) or settings.top_n_sigma > 0
    if library is None or unusual or settings.uses_mirostat:
        return None
    return NativeDraw(library, settings, kept)


@cache
def _library() -> Any:
    pointer = ctypes.c_void_p
    try:
        library = ctypes.CDLL(str(_FILE))
        library.edge_pick_3.argtypes, library.edge_pick_3.restype = [pointer], ctypes.c_int32
        library.edge_guess_2.argtypes = [ctypes.c_int64, pointer, ctypes.c_int64, pointer]
        library.edge_guess_2.restype = None
    except (OSError, AttributeError):
        return None
    return library
