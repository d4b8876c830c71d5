"""The compiled library: where it is, what it can do here, and its functions for tests and measurements."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels.packing import GROUP, VERSION, read_header
from edge_spec.errors import BackendError, ModelFileError, SettingsError

_FOLDER = Path(__file__).parent
_FILE = _FOLDER / ("rows" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))

_OPERATORS = 2
"""The version of the operators for ONNX Runtime, see ``src/library.c``."""


def available() -> str | None:
    """None if the kernels can be used; else the reason why not, as a clause that fits after "because"."""
    loaded = _load()
    return loaded if isinstance(loaded, str) else None


def why_slow() -> str | None:
    """None if there are kernels that are fast here; else the reason why not, as a clause."""
    lacking = available()
    if lacking is not None:
        return f"edge-spec's kernels are not available because {lacking}"
    return "edge-spec has no fast kernels for this processor" if features()[0] == "reference" else None


def features() -> tuple[str, ...]:
    """The variants that this CPU runs, the fastest first; the last is always "reference".

    Raises:
        BackendError: the kernels are not available.
    """
    library = _library()
    names: list[str] = []
    index = 0
    while (name := library.edge_rows_variant(index)) is not None:
        if library.edge_rows_variant_runs_here(index):
            names.append(name.decode())
        index += 1
    return tuple(names)


def library_path() -> Path:
    """The file for ``onnxruntime.SessionOptions.register_custom_ops_library``.

    Raises:
        BackendError: the kernels are not available.
    """
    _library()
    return _FILE


def matmul_rows(
    packed: npt.NDArray[np.uint8],
    activations: npt.NDArray[np.float32],
    *,
    variant: str = "",
    groups: range | None = None,
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """Activations times packed weights, in the calling thread (the interpreter lock is released).

    Args:
        packed: uint8 ``[bytes]`` from ``pack``.
        activations: float32 ``[n_rows, n_in]``.
        variant: one of ``features()``; "" for the fastest.
        groups: only the outputs of these groups of 16, so that threads can share a product.
        out: float32 ``[n_rows, n_out]`` to write to; with ``groups``, the other outputs stay as they are.

    Returns:
        float32 ``[n_rows, n_out]``.

    Raises:
        BackendError: the kernels are not available, or there is no memory for the activations.
        ModelFileError: the packed weights are damaged.
        SettingsError: an array has the wrong shape or type, or the variant cannot run here.
    """
    library = _library()
    packed = _packed(packed)
    header = read_header(packed)
    if variant and variant not in features():
        hint = f"there are {', '.join(features())}"
        raise SettingsError(f"there is no kernel variant {variant!r} here", hint=hint)
    if activations.ndim != 2 or activations.shape[1] != header.n_in or activations.dtype != np.float32:
        raise SettingsError(
            f"activations are {activations.dtype} {list(activations.shape)}",
            hint=f"they should be float32 [rows, {header.n_in}]",
        )
    activations = np.ascontiguousarray(activations)
    shape = (activations.shape[0], header.n_out)
    if out is None:
        out = np.zeros(shape, np.float32)
    elif out.shape != shape or out.dtype != np.float32 or not (out.flags.c_contiguous and out.flags.writeable):
        raise SettingsError(f"out should be a contiguous float32 {list(shape)}")
    n_groups = -(-header.n_out // GROUP)
    chosen = range(n_groups) if groups is None else groups
    if chosen.step != 1 or not 0 <= chosen.start <= chosen.stop <= n_groups:
        raise SettingsError(f"groups are {chosen} and should lie within range(0, {n_groups})")
    _check(
        library.edge_rows_multiply(
            packed.ctypes.data,
            packed.nbytes,
            variant.encode() or None,
            activations.ctypes.data,
            activations.shape[0],
            chosen.start,
            chosen.stop,
            out.ctypes.data,
        )
    )
    return out


def weights(packed: npt.NDArray[np.uint8], rows: range | None = None) -> npt.NDArray[np.float32]:
    """The values that packed weights stand for, equal to those that GGUF's blocks stand for.

    Args:
        packed: uint8 ``[bytes]`` from ``pack``.
        rows: only these outputs.

    Returns:
        float32 ``[rows, n_in]``.

    Raises:
        BackendError: the kernels are not available.
        ModelFileError: the packed weights are damaged.
        SettingsError: rows out of range.
    """
    library = _library()
    packed = _packed(packed)
    header = read_header(packed)
    chosen = range(header.n_out) if rows is None else rows
    if chosen.step != 1 or not 0 <= chosen.start <= chosen.stop <= header.n_out:
        raise SettingsError(f"rows are {chosen} and should lie within range(0, {header.n_out})")
    values = np.empty((len(chosen), header.n_in), np.float32)
    address, size = packed.ctypes.data, packed.nbytes
    _check(library.edge_rows_weights(address, size, chosen.start, len(chosen), values.ctypes.data))
    return values


def _packed(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    if packed.dtype != np.uint8 or packed.ndim != 1:
        hint = "they should be uint8 [bytes]"
        raise SettingsError(f"packed weights are {packed.dtype} {list(packed.shape)}", hint=hint)
    return np.ascontiguousarray(packed)


def _check(wrong: bytes | None) -> None:
    if wrong is not None:
        message = wrong.decode()
        raise BackendError(message) if "memory" in message else ModelFileError(message)


def _library() -> Any:
    loaded = _load()
    if isinstance(loaded, str):
        raise BackendError(
            f"the kernels are not available because {loaded}",
            hint="install a C compiler and reinstall edge-spec, or take another engine",
        )
    return loaded


@cache
def _load() -> Any:
    """The library, or a string that says why there is none."""
    if not _FILE.exists():
        note = _FOLDER / "not_built.txt"
        if note.exists():
            first_line = note.read_text(encoding="utf-8").strip().splitlines()[:1]
            return f"their C sources did not compile when edge-spec was installed ({''.join(first_line)})"
        return "they were not built when edge-spec was installed"
    try:
        library = ctypes.CDLL(str(_FILE))
        version, operators = int(library.edge_rows_version()), int(library.edge_rows_operators())
    except (OSError, AttributeError) as error:
        return f"{_FILE.name} cannot be loaded ({error})"
    if version != VERSION:
        return f"{_FILE.name} is version {version} and this edge-spec needs {VERSION}"
    if operators != _OPERATORS:
        return f"{_FILE.name} has version {operators} of the operators and this edge-spec needs {_OPERATORS}"
    array, count, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    for name, result, arguments in (
        ("edge_rows_variant", text, [ctypes.c_int]),
        ("edge_rows_variant_runs_here", ctypes.c_int, [ctypes.c_int]),
        ("edge_rows_multiply", text, [array, count, text, array, count, count, count, array]),
        ("edge_rows_weights", text, [array, count, count, count, array]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
