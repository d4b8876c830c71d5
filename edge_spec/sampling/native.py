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
        self._draw, self._pick = library.edge_draw_3, library.edge_pick_1
        self._settings = _DrawSettings(settings.top_k, settings.top_p, settings.temperature, deepest)
        self._by = ctypes.byref(self._settings)
        self._changes = _Changes()
        self._ids = (ctypes.c_int32 * FEW)()
        self._scores = (ctypes.c_double * FEW)()
        # C reads these as long as this object lives.
        self._tokens = None if kept is None else np.ascontiguousarray(kept.ids, np.int64)
        tokens = None if self._tokens is None else self._tokens.ctypes.data
        self._rest = (tokens, self._by, self._ids, self._scores)

    def __call__(self, row: Row, key: int) -> tuple[list[int], list[float]] | None:
        """Return what can be drawn and its noisy scores, or None where it is left to Python."""
        if not row.flags.c_contiguous or row.dtype != _FLOAT32:
            return None
        if self._tokens is not None and len(self._tokens) != row.shape[0]:
            return None
        n = self._draw(row.__array_interface__["data"][0], row.shape[0], key, *self._rest)
        if n == 0:
            return None
        return self._ids[:n], self._scores[:n]

    def pick(self, row: Row, key: int, changes: Changes | None = None) -> int:
        """Return what a row with columns for all tokens is drawn to; -1 where it is left to Python.

        Args:
            changes: what is added to its logits before.
        """
        if not row.flags.c_contiguous or row.dtype != _FLOAT32:
            return -1
        by = None
        if changes is not None:
            tokens, amounts = changes
            n = len(tokens)
            if n > FEW:
                return -1
            own = self._changes
            own.n, own.columns[:n], own.amounts[:n] = n, tokens, amounts
            by = ctypes.byref(own)
        token: int = self._pick(row.__array_interface__["data"][0], row.shape[0], key, by, self._by)
        return token


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
        library.edge_draw_3.argtypes = [pointer, n, key, pointer, pointer, pointer, pointer]
        library.edge_pick_1.argtypes = [pointer, n, key, pointer, pointer]
        library.edge_draw_3.restype = library.edge_pick_1.restype = result
    except (OSError, AttributeError):
        return None
    return library
