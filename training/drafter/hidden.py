"""The target's hidden rows on disk, for every token of what a head learns from.

The file is written from its beginning on, one text after the other, so its length says where an interrupted run
continues.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edge_spec.engines.base import Engine
from edge_spec.errors import BAD_RECORD, DiskFull, ModelFileError
from edge_spec.models import ModelFile
from edge_spec.training.clock import Clock, TimeIsUp
from edge_spec.training.drafter.heads import target_layers
from edge_spec.training.drafter.opened import opened_with_hidden_rows
from edge_spec.training.drafter.portions import portions_in

__all__ = ["HIDDEN", "hidden_bytes", "read_hidden", "write_hidden"]

HIDDEN = "hidden.npy"

_SAY_EVERY_S = 20.0


def hidden_bytes(target: ModelFile) -> int:
    """What the hidden rows of a token take: three in 16 bits."""
    return 3 * target.n_embd * np.dtype(np.float16).itemsize


def write_hidden(
    answers: Path,
    folder: Path,
    target: ModelFile,
    on: Engine,
    *,
    cache_dir: Path | None,
    clock: Clock,
    say: Callable[[str], None],
) -> None:
    """Let the target read all texts once more, and write its hidden rows; nothing if they are there already.

    Args:
        answers: the portions. What is trained on has the head's own ids, and the target must read its own.
        folder: for the file.

    Raises:
        TimeIsUp: the time limit is reached; what is written is kept.
        DiskFull: they do not fit. UnsupportedModel: the target has no hidden rows here, or too few layers.
    """
    path = folder / HIDDEN
    if path.is_file():
        return
    begins = np.cumsum([0, *np.concatenate([portion.lengths for portion in portions_in(answers)])], dtype=np.int64)
    n_tokens, n_texts, row_bytes = int(begins[-1]), len(begins) - 1, hidden_bytes(target)
    n_ctx, layers = int(np.diff(begins).max()), target_layers(target)
    header = _header(n_tokens, 3 * target.n_embd)
    part = path.with_name(f"{HIDDEN}.part")
    part.touch()
    with part.open("r+b") as file:
        first = _continued(file, header, begins, row_bytes)
        _require_room(folder, (n_tokens - int(begins[first])) * row_bytes)
        began_s = said_s = clock.elapsed_s
        with opened_with_hidden_rows(target, on, n_ctx, layers, cache_dir=cache_dir) as (model, rows):
            for number, text in enumerate(islice(_texts(answers), first, None), first + 1):
                if clock.over:
                    raise TimeIsUp(f"the target has read {number - 1:,} of {n_texts:,} texts again")
                model.rollback(0)
                model.prefill(text)
                file.write(rows[0 : len(text)].tobytes())
                if clock.elapsed_s - said_s > _SAY_EVERY_S or number == n_texts:
                    said_s = clock.elapsed_s
                    speed = (begins[number] - begins[first]) / max(1e-9, said_s - began_s)
                    left_min = (n_tokens - begins[number]) / speed / 60
                    say(
                        f"hidden rows: {begins[number]:,} of {n_tokens:,} tokens, {speed:,.0f} tokens/s, "
                        f"{left_min:.1f} min left"
                    )
    part.replace(path)


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


def _texts(answers: Path) -> Iterator[list[int]]:
    """All texts in the target's ids, prompts with their answers."""
    for portion in portions_in(answers):
        for text in np.split(portion.tokens, np.cumsum(portion.lengths)[:-1]):
            yield text.tolist()


def _header(n_tokens: int, width: int) -> bytes:
    """What an ``.npy`` of such rows begins with."""
    written, kind = io.BytesIO(), np.lib.format.dtype_to_descr(np.dtype(np.float16))
    described: dict[str, Any] = {"descr": kind, "fortran_order": False, "shape": (n_tokens, width)}
    np.lib.format.write_array_header_1_0(written, described)
    return written.getvalue()


def _continued(file: BinaryIO, header: bytes, begins: npt.NDArray[np.int64], row_bytes: int) -> int:
    """Put a file where the next text belongs; returns the number of that text."""
    if file.read(len(header)) != header:
        file.seek(0)
        file.truncate()
        file.write(header)
        return 0
    n_rows = (file.seek(0, io.SEEK_END) - len(header)) // row_bytes
    first = int(np.searchsorted(begins, n_rows, side="right")) - 1
    file.seek(len(header) + int(begins[first]) * row_bytes)
    file.truncate()
    return first


def _require_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        hint = "free some space and run the same command again: what is finished is kept"
        raise DiskFull(f"the hidden rows, in {folder},", needed_bytes=needed, available_bytes=free, hint=hint)
