"""How long OpenMP's threads wait actively for one another before they sleep.

llama.cpp's threads meet at a barrier some hundred times per token. As OpenMP comes, they wait there in a loop: with
GNU's library for milliseconds, with LLVM's for 200 of them. Where another program has the core of the thread that is
waited for, nobody computes meanwhile, and two programs on two cores take many times their share.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["read_settings", "short_waits"]

_SHORT = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "0"}
"""Settings of GNU's library, in turns of the loop, and of LLVM's and Intel's, in milliseconds.

A tenth of a millisecond in the loop costs a program alone nothing, while threads that sleep at once
(``OMP_WAIT_POLICY=passive``) cost it up to twice its time.
"""

_CHOSEN = frozenset((*_SHORT, "OMP_WAIT_POLICY", "KMP_LIBRARY"))
"""Whoever has set one of these has chosen how threads wait."""


@contextmanager
def short_waits() -> Iterator[None]:
    """Inside, what is loaded and brings OpenMP lets its threads wait for a short time, unless the user has chosen.

    The environment is as before afterwards: it is not meant for programs that this one starts.
    """
    settings = {} if _CHOSEN & os.environ.keys() else _SHORT
    for name, value in settings.items():
        os.putenv(name, value)
    try:
        yield
    finally:
        for name in settings:
            os.unsetenv(name)


def read_settings(library: Any) -> None:
    """Let OpenMP read the environment now: LLVM's does so when it is first called, GNU's when it is loaded.

    Args:
        library: a ctypes library, which may have been built with OpenMP.
    """
    with suppress(AttributeError):
        library.omp_get_max_threads()
