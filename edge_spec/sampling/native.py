"""The usual draw in C, where the package was built with a compiler."""

from __future__ import annotations

import ctypes
import math
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edge_spec.sampling.candidates import FEW, LOWEST, MARGIN, REACH, Few, Row
from edge_spec.sampling.settings import SamplerSettings

__all__ = ["NativeDraw", "native_draw"]

_FLOAT32 = np.dtype(np.float32)

_FILE = Path(__file__).parent / ("draw" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))


class _DrawSettings(ctypes.Structure):
    _fields_ = (
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_double),
        ("temperature", ctypes.c_double),
        ("deepest", ctypes.c_double),
        ("first_reach", ctypes.c_double),
        ("second_reach", ctypes.c_double),
        ("lowest", ctypes.c_double),
    )


class NativeDraw:
    """``src/draw.c`` with fixed settings. Not for several threads at once: its results lie in its own buffers."""

    def __init__(self, function: Any, settings: SamplerSettings) -> None:
        deepest = -math.log(settings.min_p) if settings.min_p > 0 else math.inf
        self._function = function
        self._settings = _DrawSettings(
            settings.top_k, settings.top_p, settings.temperature, deepest, deepest + MARGIN, REACH, LOWEST
        )
        self._ids = (ctypes.c_int32 * FEW)()
        self._scores = (ctypes.c_double * FEW)()
        self._rest = (ctypes.byref(self._settings), self._ids, self._scores)

    def __call__(self, row: Row, key: int) -> Few | None:
        """What can be drawn and its noisy scores, or None where only Python knows."""
        if not row.flags.c_contiguous or row.dtype != _FLOAT32:
            return None
        n = self._function(row.__array_interface__["data"][0], row.shape[0], key, *self._rest)
        if n == 0:
            return None
        return self._ids[:n], self._scores[:n]


def native_draw(settings: SamplerSettings) -> NativeDraw | None:
    """The draw in C; None if it was not built, or does not know a transform that these settings ask for."""
    function = _function()
    filters = settings.typical_p < 1 or settings.top_n_sigma > 0 or settings.excludes_top_choices
    unusual = settings.temperature == 0 or filters or settings.uses_mirostat
    return None if function is None or unusual else NativeDraw(function, settings)


@cache
def _function() -> Any:
    try:
        function = ctypes.CDLL(str(_FILE)).edge_draw
    except (OSError, AttributeError):
        return None
    pointer = ctypes.c_void_p
    function.argtypes = [pointer, ctypes.c_int64, ctypes.c_uint64, pointer, pointer, pointer]
    function.restype = ctypes.c_int32
    return function
