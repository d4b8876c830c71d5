"""Measured peaks of this computer: bytes read from memory and bytes multiplied, per second."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

READ_BYTES = 128 << 20
"""Per thread; more than fits caches."""

STEPS, PER_STEP = 2_000_000, 12
PRODUCTS = {
    **{"avx512-vnni": 64, "avx512-vnni-256": 32, "avx512": 64, "avx2": 32},
    **{"neon-i8mm": 32, "neon-dotprod": 16, "neon": 8},
}
"""Products of bytes per instruction, by kernel variant."""


class Peaks:
    """Peaks of ``n_threads`` threads together.

    Args:
        folder: where ``peaks.c`` is compiled to.
    """

    def __init__(self, n_threads: int, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise SystemExit("measuring peaks needs a C compiler")
        source, built = Path(__file__).with_name("peaks.c"), folder / "peaks.so"
        # Wide registers for reading; other processors have none but those that every one of their kind has.
        wide = ["-march=native"] if platform.machine().lower() in ("x86_64", "amd64") else []
        subprocess.run([compiler, "-O3", *wide, "-shared", "-fPIC", "-o", built, source], check=True)
        self._code = ctypes.CDLL(str(built))
        self._n_threads = n_threads
        self._arrays = [np.ones(READ_BYTES // 8, np.uint64) for _ in range(n_threads)]

    def bytes_per_s(self) -> float:
        """Bytes read sequentially from memory."""
        read = self._code.peak_read
        read.argtypes, read.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint64
        jobs = [lambda array=array: read(array.ctypes.data, array.nbytes) for array in self._arrays]
        return self._n_threads * READ_BYTES / self._seconds(jobs)

    def products_per_s(self, variant: str) -> float | None:
        """Products of bytes by a variant's instructions; None if unknown."""
        if variant not in PRODUCTS:
            return None
        multiply = getattr(self._code, "peak_" + variant.replace("-", "_"))
        multiply.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_int]
        seconds = self._seconds([lambda: multiply(STEPS, 3, 5)] * self._n_threads)
        return self._n_threads * STEPS * PER_STEP * PRODUCTS[variant] / seconds

    def _seconds(self, jobs: Sequence[Callable[[], Any]]) -> float:
        """The best of several runs of all jobs at once."""
        taken = []
        with ThreadPoolExecutor(self._n_threads) as pool:
            for _ in range(5):
                start = perf_counter()
                list(pool.map(lambda job: job(), jobs))
                taken.append(perf_counter() - start)
        return min(taken)
