"""Keeps llama.cpp from using Intel's AMX, whose kernels crash where GCC 12 or older has built them.

``_tile_loadconfig`` of these compilers does not say that it reads all 64 bytes of the tile configuration, so stores to
it are dropped as dead and the first matrix multiplication ends in a general protection fault (seen with Debian 12's
GCC 12.2 and llama-cpp-python 0.3.36 on a Sapphire Rapids processor). llama.cpp has no switch for AMX alone. Its next
choice for the same weights is the repacked layout that every other processor with AVX-512 uses.
"""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["leave_out_amx"]

_CPU = 0
"""``GGML_BACKEND_DEVICE_TYPE_CPU``."""


def leave_out_amx(lib: Any) -> bool:
    """Remove AMX from the layouts that llama.cpp may choose for weights; returns whether it was among them.

    The library returns its own array of buffer types, terminated by a null pointer, and reads the same array whenever
    it loads a model.

    Args:
        lib: the ctypes library of llama.cpp; functions of ggml are found through it.
    """
    try:
        by_type, registry_of, address_of, name_of = (
            lib.ggml_backend_dev_by_type,
            lib.ggml_backend_dev_backend_reg,
            lib.ggml_backend_reg_get_proc_address,
            lib.ggml_backend_buft_name,
        )
    except AttributeError:
        return False
    by_type.argtypes, by_type.restype = [ctypes.c_int], ctypes.c_void_p
    registry_of.argtypes, registry_of.restype = [ctypes.c_void_p], ctypes.c_void_p
    address_of.argtypes, address_of.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_void_p
    name_of.argtypes, name_of.restype = [ctypes.c_void_p], ctypes.c_char_p
    cpu = by_type(_CPU)
    address = address_of(registry_of(cpu), b"ggml_backend_dev_get_extra_bufts") if cpu else None
    if not address:
        return False
    layouts = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(cpu)
    found = 0
    place = 0
    while layouts and layouts[place]:
        if name_of(layouts[place]) == b"AMX":
            found += 1
        else:
            layouts[place - found] = layouts[place]
        place += 1
    for gone in range(place - found, place):
        layouts[gone] = None
    return found > 0
