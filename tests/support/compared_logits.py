"""Logits of a model file on both engines, and how far they are from each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from lone_text import lone_text

from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.onnx.opener import open_onnx
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.settings import ModelSettings
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import inspect
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree

__all__ = [
    "Change",
    "Rows",
    "by_row",
    "changed",
    "off_by",
    "on_llama",
    "on_onnx",
    "rows_however_read",
    "rows_of",
    "set_fact",
    "swapped",
]

Rows = np.ndarray[Any, Any]
Change = Callable[[Rows], Rows]


def by_row(ours: Rows, theirs: Rows) -> Rows:
    """Root mean square of the difference of rows, in standard deviations of theirs, ``[n]``."""
    return np.asarray(np.sqrt(np.mean((ours - theirs) ** 2, axis=-1)) / theirs.std(axis=-1))


def rows_of(model: TextPath, text: list[int], widths: Sequence[int], *, start: int = 4) -> Rows:
    """Rows of a text but those of its first tokens, in decodes of these widths by turns."""
    if model.n_past < start:
        model.prefill(text[model.n_past : start])
    rows, turn = [], 0
    while start < len(text):
        part = Tree.sequence(text[start : start + widths[turn % len(widths)]])
        rows.append(model.decode(part).copy())
        model.keep(range(len(part)))
        start, turn = start + len(part), turn + 1
    return np.concatenate(rows)


def rows_however_read(model: TextPath, text: list[int], look: Callable[[Rows], object]) -> Rows:
    """Rows of a text of 600 tokens: the same in decodes of any widths, however the text before them was read.

    Args:
        look: called after each way of reading, with the rows.
    """
    ours = rows_of(model, text, [8])
    for widths in (range(1, 17), [1], [2, 3]):
        model.rollback(0)
        assert np.array_equal(rows_of(model, text, widths), ours)
    states = set()
    for pieces in ((590,), (1, 7, 33, 100, 13), (16, 1, 15)):
        model.rollback(0)
        turn = 0
        while model.n_past < 590:
            model.prefill(text[model.n_past : min(590, model.n_past + pieces[turn % len(pieces)])])
            turn += 1
        states.add(model.save())
        assert np.array_equal(rows_of(model, text, [5], start=590), ours[586:])
        look(ours)
    assert len(states) == 1
    model.rollback(0)
    model.restore(states.pop())
    assert np.array_equal(rows_of(model, text, [3], start=590), ours[586:])
    return ours


def on_llama(path: Path, text: list[int], *, flash: bool = False) -> Rows:
    weights = LlamaWeights(path)
    # Which of its rows have the same bits is not asked, and would take most of the time.
    settings = LlamaSettings(n_ctx=640, n_threads=1, kv_k="f32", kv_v="f32", flash_attention=flash, exact=False)
    pool, _ = open_llama(weights, settings, file="x", cache_dir=None)
    model = lone_text(pool)
    rows = rows_of(model, text, [8])
    model.close()
    weights.close()
    return rows


def off_by(path: Path, text: list[int], ours: Rows, exact: Rows) -> list[float]:
    """Return how far our rows, and those of llama.cpp with and without flash attention, are from exact ones.

    They are compared by medians: what is rounded to 8 bits lets a few rows of each choose another expert.
    """
    theirs = (on_llama(path, text, flash=flash) for flash in (True, False))
    return [float(np.median(by_row(rows, exact))) for rows in (ours, *theirs)]


def on_onnx(path: Path, folder: Path, **values: Any) -> TextPath:
    """Return a text of a model on ONNX Runtime, with the cache that rounds least unless another is given."""
    exact: dict[str, Any] = {"n_ctx": 640, "n_threads": 1, "trees": True, "kv_k": "f32", "kv_v": "f32"}
    settings = ModelSettings(**(exact | values))
    pool, found = open_onnx(transcribe(inspect(path), folder), settings, file="x", cache_dir=None)
    model = lone_text(pool)
    assert found.capabilities.identity == "bitwise"
    return model


def changed(path: Path, changes: Mapping[str, Change]) -> Path:
    """Changes tensors of floats in a file: those whose names end so."""
    reader = gguf.GGUFReader(path, "r+")
    for tensor in reader.tensors:
        for end, change in changes.items():
            if tensor.name.endswith(end):
                tensor.data[:] = change(tensor.data.copy())
    del reader
    return path


def swapped(path: Path, pairs: Mapping[str, str]) -> Path:
    """Has pairs of tensors of one shape change places in a file: all whose names end so, layer by layer."""
    reader = gguf.GGUFReader(path, "r+")
    found = {tensor.name: tensor for tensor in reader.tensors}
    for one, other in pairs.items():
        names = [name for name in found if name.endswith(one)]
        assert names, f"no tensor ends with {one}"
        for name in names:
            first, second = found[name].data, found[name.removesuffix(one) + other].data
            first[:], second[:] = second.copy(), first.copy()
    del reader
    return path


def set_fact(path: Path, name: str, value: float) -> None:
    """Change the first number of a fact in a file."""
    reader = gguf.GGUFReader(path, "r+")
    field = reader.fields[name]
    field.parts[field.data[0]][0] = value
    del reader
