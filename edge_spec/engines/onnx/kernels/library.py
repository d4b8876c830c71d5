"""The compiled library: where it is, and what it can do here. ONNX Runtime calls its operators."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels.shared import NUMBERS
from edge_spec.engines.registry import use
from edge_spec.errors import BackendError, Sentence

__all__ = [
    "available",
    "can_drop_pages",
    "copy_cells",
    "features",
    "keep_features",
    "library_path",
    "read_features",
    "why_slow",
]

Rows = npt.NDArray[np.float32]
Cells = npt.NDArray[np.intp]

_FOLDER = Path(__file__).parent
_FILE = _FOLDER / ("rows" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))


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
    """Return the variants that this CPU runs, the fastest first; the last is always "reference".

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


def can_drop_pages() -> bool:
    """Return whether pages of mapped experts can be dropped on this system, see ``src/pages.h``."""
    return sys.platform != "win32"


def library_path() -> Path:
    """Return the file for ``onnxruntime.SessionOptions.register_custom_ops_library``.

    Raises:
        BackendError: the kernels are not available.
    """
    _library()
    return _FILE


def copy_cells(layers: npt.NDArray[np.uintp], shape: tuple[int, int, int, int], cells: npt.NDArray[np.int64]) -> None:
    """Copy cells of a pool in place, one after the other.

    Args:
        layers: addresses of the keys and of the values of each layer, ``[2, n_layers]``.
        shape: heads, cells, numbers of a head, and bytes of a number.
        cells: ``[n, 2]``: the one that is copied, and the one that it is copied to.
    """
    arrays = (ctypes.c_void_p(row.ctypes.data) for row in layers)
    sizes = (ctypes.c_size_t(n) for n in (layers.shape[1], *shape))
    pairs = np.ascontiguousarray(cells, np.int64)
    _library().edge_rows_copy_cells(*arrays, *sizes, ctypes.c_void_p(pairs.ctypes.data), ctypes.c_size_t(len(pairs)))


def keep_features(rows: Rows, cells: Cells, codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]) -> None:
    """Round rows to 8 bits, each 32 numbers with a scale, and put them into cells; see ``src/features.c``.

    Args:
        rows: ``[n, width]``.
        cells: ``[n]``.
        codes, scales: of all cells, ``[.., width]`` and ``[.., width / 32]``.
    """
    _features(_library().edge_rows_keep_features, rows, cells, codes, scales)


def read_features(cells: Cells, codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]) -> Rows:
    """Return the rows of some cells; see ``keep_features``."""
    rows = np.empty((len(cells), codes.shape[1]), np.float32)
    _features(_library().edge_rows_read_features, rows, cells, codes, scales)
    return rows


def _features(
    function: Any, rows: Rows, cells: Cells, codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]
) -> None:
    cells = np.ascontiguousarray(cells, np.int64)
    n, n_blocks = len(cells), scales.shape[1]
    function(rows.ctypes.data, cells.ctypes.data, n, n_blocks, codes.ctypes.data, scales.ctypes.data)


def _library() -> Any:
    loaded = _load()
    if isinstance(loaded, str):
        raise BackendError(
            f"the kernels are not available because {loaded}",
            hint=Sentence("install a C compiler and reinstall edge-spec, or {use}", use=use("llama")),
        )
    return loaded


@cache
def _load() -> Any:
    """Return the library, or a string that says why there is none."""
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
    wanted = NUMBERS["VERSION"], NUMBERS["OPERATORS"]
    if (version, operators) != wanted:
        return f"{_FILE.name} is of version {version}, {operators} and this edge-spec needs {wanted[0]}, {wanted[1]}"
    library.edge_rows_variant.restype = ctypes.c_char_p
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for each in (library.edge_rows_keep_features, library.edge_rows_read_features):
        each.argtypes, each.restype = (pointer, pointer, size, size, pointer, pointer), None
    return library
