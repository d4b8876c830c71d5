"""The usual draw in C: top-k, top-p, min-p and temperature, of at most 96 candidates.

A draw in Python takes several times as long, which small models notice. Python (``candidates``, ``Sampler``) is the
reference: tests compare both, bit for bit. It also draws whatever C leaves to it: other filters, grammars, more
candidates, and everything where the package was installed without a compiler.
"""

from __future__ import annotations

import ctypes
import math
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edge_spec.sampling.adjustments import Changes
from edge_spec.sampling.candidates import Row
from edge_spec.sampling.filters import EARLY, FEW, LATE
from edge_spec.sampling.settings import SamplerSettings
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["NativeDraw", "native_draw"]

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


class NativeDraw:
    """``src/draw.c`` with fixed settings. Not for several threads at once: its results are in its own buffers."""

    def __init__(self, library: Any, settings: SamplerSettings, kept: KeptTokens | None) -> None:
        deepest = -math.log(settings.min_p) if settings.min_p > 0 else math.inf
        self._pick, self._guess = library.edge_pick_2, library.edge_guess_1
        self._settings = _DrawSettings(settings.top_k, settings.top_p, settings.temperature, deepest)
        self._own_changes = _Changes()
        self._own_changes_by = ctypes.byref(self._own_changes)
        # Those that are in there: most often they are the same again.
        self._changes: Changes | None = None
        self._ids = (ctypes.c_int32 * FEW)()
        self._chances = (ctypes.c_double * FEW)()
        # C reads these as long as this object lives.
        self._tokens = None if kept is None else np.ascontiguousarray(kept.ids, np.int64)
        self._n_columns = None if kept is None else len(kept)
        self._rest = (None if self._tokens is None else self._tokens.ctypes.data, ctypes.byref(self._settings))

    def guess(self, row: Row, key: int, n: int, changes: Changes | None = None) -> list[tuple[int, float]]:
        """Return what ``Sampler.guess`` returns, nothing where it is left to Python.

        Args:
            changes: what is added to logits of the row before.
        """
        if not self._reads(row, changes):
            return []
        by = None if changes is None else self._own_changes_by
        ids, chances = self._ids, self._chances
        address = row.__array_interface__["data"][0]
        found = self._guess(address, row.shape[0], key, by, *self._rest, min(n, FEW), ids, chances)
        return [(ids[0], chances[0])] if found == 1 else list(zip(ids[:found], chances[:found], strict=True))

    def pick(self, row: Row, key: int, changes: Changes | None = None) -> int:
        """Return what a row is drawn to; -1 where it is left to Python. See ``guess``."""
        if not self._reads(row, changes):
            return -1
        by = None if changes is None else self._own_changes_by
        token: int = self._pick(row.__array_interface__["data"][0], row.shape[0], key, by, *self._rest)
        return token

    def _reads(self, row: Row, changes: Changes | None) -> bool:
        """Return whether C can look at a row, and have it find the changes."""
        if not row.flags.c_contiguous or row.dtype != _FLOAT32 or self._n_columns not in (None, row.shape[0]):
            return False
        if changes is not None and changes is not self._changes:
            columns, amounts = changes
            n = len(columns)
            if n > FEW:
                return False
            own = self._own_changes
            own.n, own.columns[:n], own.amounts[:n] = n, columns, amounts
            self._changes = changes
        return True


def native_draw(settings: SamplerSettings, kept: KeptTokens | None = None) -> NativeDraw | None:
    """Return the draw in C; None if it was not built, or does not know a transform that these settings ask for.

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
    pointer, n, key, result = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int32
    try:
        library = ctypes.CDLL(str(_FILE))
        library.edge_pick_2.argtypes = [pointer, n, key, pointer, pointer, pointer]
        library.edge_guess_1.argtypes = [*library.edge_pick_2.argtypes, result, pointer, pointer]
        library.edge_pick_2.restype = library.edge_guess_1.restype = result
    except (OSError, AttributeError):
        return None
    return library
