"""The graphs of a head on disk, over weights that ONNX Runtime maps: made once, and checked before they are used.

They lie in a folder within that of the target's transcription, some of whose rows they may hold, and go with it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from edge_spec.engines.onnx.transcription.cache import checksum, digests
from edge_spec.engines.onnx.transcription.cache_folder import (
    is_of,
    new_part,
    record_source,
    record_whole,
    remove,
    was_whole,
)
from edge_spec.engines.onnx.transcription.matrices import WEIGHTS, Weights, WeightsFile
from edge_spec.engines.onnx.transcription.proto import Graph
from edge_spec.errors import BAD_RECORD
from edge_spec.foreign import read_json

__all__ = ["HEAD_GRAPHS", "is_kept", "keep"]

HEAD_GRAPHS = {"model.onnx": False, "half.onnx": True}
"""The graphs of a head, and whether their cache holds fp16."""

_FACTS = "facts.json"


def is_kept(folder: Path, parts: Sequence[Path]) -> bool:
    """Return whether graphs and weights are there as they were written, and were made of a head's files."""
    try:
        facts, weights = read_json(folder / _FACTS), folder / WEIGHTS
        if facts["graphs"] != digests(folder, HEAD_GRAPHS):
            return False
        if not was_whole(weights):
            if facts["weights"] != checksum(weights):
                return False
            record_whole(weights)
        return is_of(folder, parts)
    except (OSError, *BAD_RECORD):
        return False


def keep(folder: Path, parts: Sequence[Path], write: Callable[[Weights, bool], Graph], n_bytes: int) -> bool:
    """Write the graphs, whole or not at all; return whether they are there: a full disk is no reason to fail.

    Args:
        parts: the head's files.
        write: returns the graph whose cache holds fp16, if the second argument says so, or else fp32.
        n_bytes: about what they take.
    """
    with suppress(OSError):
        if shutil.disk_usage(folder.parent).free < 2 * n_bytes:
            return False
        with new_part(folder.parent.parent) as part:
            made = Path(part) / folder.name
            made.mkdir()
            with (made / WEIGHTS).open("wb") as file:
                store = WeightsFile(file)
                for name, f16 in HEAD_GRAPHS.items():
                    (made / name).write_bytes(write(store, f16).serialize())
            facts = {"graphs": digests(made, HEAD_GRAPHS), "weights": store.checksum}
            (made / _FACTS).write_text(json.dumps(facts), "utf-8")
            record_source(made, parts)
            record_whole(made / WEIGHTS)
            if folder.exists():
                # Damaged: moved away first, so that no process sees half of it.
                remove(folder)
            made.rename(folder)
            return True
    return is_kept(folder, parts)
