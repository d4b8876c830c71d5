"""The target's hidden rows on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_spec.errors import BAD_RECORD, ModelFileError

__all__ = ["HIDDEN", "read_hidden"]

HIDDEN = "hidden.npy"


def read_hidden(folder: Path, n_tokens: int) -> npt.NDArray[np.float16]:
    """Hidden rows of all tokens, ``[n, 3 * width]``, which stay on the disk.

    Raises:
        ModelFileError: they are not there, or are of other texts.
    """
    path = folder / HIDDEN
    try:
        found: npt.NDArray[np.float16] = np.load(path, mmap_mode="r")
    except (OSError, *BAD_RECORD) as error:
        raise ModelFileError(f"{path} is damaged ({error})", hint="remove it and run again") from error
    if found.ndim != 2 or len(found) != n_tokens or found.dtype != np.float16:
        raise ModelFileError(f"{path} is of other texts", hint="remove it and run again")
    return found
