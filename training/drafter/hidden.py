"""The target's hidden states on disk, for every token that a head learns from: a file beside each portion of answers.

The target writes them along with its answers. It reads again only what was written without them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_spec.engines.base import Engine
from edge_spec.errors import BAD_RECORD, DiskFull, ModelFileError
from edge_spec.models import ModelFile
from edge_spec.training.checkpoint import whole_file
from edge_spec.training.clock import Clock, TimeIsUp
from edge_spec.training.drafter.heads import target_layers
from edge_spec.training.drafter.opened import opened_with_hidden_rows
from edge_spec.training.drafter.portions import Portion, hidden_path, portion_at, portion_paths

__all__ = ["StoredRows", "hidden_bytes", "write_hidden"]


class StoredRows:
    """Hidden states of all portions, which stay on the disk.

    Args:
        n_tokens: of all texts.

    Raises:
        ModelFileError: they are not there, damaged, or of other texts.
    """

    def __init__(self, answers: Path, n_tokens: int) -> None:
        self._portions: list[npt.NDArray[np.float16]] = []
        for portion in portion_paths(answers):
            path = hidden_path(portion)
            try:
                rows: npt.NDArray[np.float16] = np.load(path, mmap_mode="r")
            except (OSError, *BAD_RECORD) as error:
                raise _damaged(path, str(error)) from error
            self._portions.append(rows)
            if rows.ndim != 2 or rows.dtype != np.float16 or rows.shape[1] != self._portions[0].shape[1]:
                raise _damaged(path, "it holds something else")
        self._ends = list(accumulate(map(len, self._portions)))
        if not self._ends or self._ends[-1] != n_tokens:
            raise _damaged(answers, "its hidden states are of other texts")

    def __getitem__(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.float16]:
        """Return the rows of some tokens, ``[*places, 3 * width]``."""
        found = np.empty((*places.shape, *self._portions[0].shape[1:]), np.float16)
        portion_of = np.searchsorted(self._ends, places, side="right")
        for number in np.unique(portion_of).tolist():
            here = portion_of == number
            begin = self._ends[number - 1] if number else 0
            found[here] = self._portions[number][places[here] - begin]
        return found


def hidden_bytes(target: ModelFile) -> int:
    """Return what the hidden states of a token take: three in 16 bits."""
    return 3 * target.n_embd * np.dtype(np.float16).itemsize


def write_hidden(
    answers: Path,
    target: ModelFile,
    on: Engine,
    *,
    cache_dir: Path | None,
    clock: Clock,
    say: Callable[[str], None],
) -> None:
    """Let the target read portions again that have no hidden states, and write these.

    Raises:
        TimeIsUp: the time limit is reached; what is written is kept.
        DiskFull: they do not fit. UnsupportedModel: the target has no hidden states here, or too few layers.
    """
    missing = [path for path in portion_paths(answers) if not hidden_path(path).is_file()]
    if not missing:
        return
    portions = [portion_at(path) for path in missing]
    n_tokens = sum(len(portion.tokens) for portion in portions)
    _require_room(answers, n_tokens * hidden_bytes(target))
    n_ctx, layers = max(int(portion.lengths.max()) for portion in portions), target_layers(target)
    began_s, n_read = clock.elapsed_s, 0
    with opened_with_hidden_rows(target, on, n_ctx, layers, cache_dir=cache_dir) as (model, _, rows):
        for path, portion in zip(missing, portions, strict=True):
            found = []
            for text in _texts(portion):
                if clock.over:
                    raise TimeIsUp(f"the target has read {n_read:,} of {n_tokens:,} tokens again")
                model.rollback(0)
                model.prefill(text)
                found.append(rows[0 : len(text)].copy())
                n_read += len(text)
            with whole_file(hidden_path(path)) as temporary, temporary.open("wb") as file:
                np.save(file, np.concatenate(found))
            speed = n_read / max(1e-9, clock.elapsed_s - began_s)
            left_min = (n_tokens - n_read) / speed / 60
            say(f"hidden states: {n_read:,} of {n_tokens:,} tokens, {speed:,.0f} tokens/s, {left_min:.1f} min left")


def _texts(portion: Portion) -> Sequence[list[int]]:
    """Return its texts in the target's ids, prompts with their answers."""
    return [text.tolist() for text in np.split(portion.tokens, np.cumsum(portion.lengths)[:-1])]


def _require_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        hint = "free some space and run the same command again: what is finished is kept"
        raise DiskFull(f"the hidden states, in {folder},", needed_bytes=needed, available_bytes=free, hint=hint)


def _damaged(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"{path} is damaged ({why})", hint="remove it and run again")
