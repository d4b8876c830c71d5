"""Writing a model in another type of weights, by llama.cpp's own function."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_spec.errors import BackendError, DiskFull, Sentence, SettingsError, UnsupportedModel
from edge_spec.llama_cpp.library import library
from edge_spec.models import ModelFile
from edge_spec.models.beside import beside
from edge_spec.models.gguf.damage import without_numbers

__all__ = ["part_of", "quantizations", "quantize"]

_PREFIX = "LLAMA_FTYPE_MOSTLY_"
_NEEDS_MATRIX = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "Q2_K_S"})
"""llama.cpp refuses these without a matrix of importance, or writes what nobody wants."""

_UNWEIGHTED = frozenset({"MXFP4_MOE", "NVFP4"})
"""For models that were trained for them."""

_DONE = re.compile(r"\[ *(\d+)/ *(\d+)\]")
_SIZE = re.compile(r"quant size += +([0-9.]+) MiB")


def quantizations() -> tuple[str, ...]:
    """Return names of the types that a model can be written in, such as ``Q4_0`` and ``Q4_K_M``."""
    names = (name.removeprefix(_PREFIX) for name in vars(library().c) if name.startswith(_PREFIX))
    return tuple(sorted(name for name in names if name not in _NEEDS_MATRIX | _UNWEIGHTED))


def quantize(
    source: ModelFile,
    out: Path,
    kind: str,
    *,
    n_threads: int = 0,
    requantize: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write a model in another type; returns the size of the new file, which stands under its name only when whole.

    Args:
        kind: one of ``quantizations``. Single tensors may get another one, as llama.cpp's recipes say.
        n_threads: 0 for the number of cores.
        requantize: quantize what is quantized already, which loses more than from the original.
        on_progress: called with tensors done and tensors in all.

    Raises:
        SettingsError: an unknown type, or a file that is there already. UnsupportedModel: not a GGUF that llama.cpp
            can quantize. DiskFull: there is no room. BackendError: it failed.
    """
    if kind not in quantizations():
        raise SettingsError(f"is {kind!r}", argument="type", hint=f"choose one of {', '.join(quantizations())}")
    if source.graph is not None:
        raise UnsupportedModel(f"{source.path.name} is an ONNX model", hint="give a GGUF")
    if not out.absolute().parent.is_dir():
        raise SettingsError(f"there is no folder {out.absolute().parent}", hint="make it first, or choose another one")
    if out.exists():
        raise SettingsError(f"{out} is there already", hint="choose another name, or remove it first")
    quantized = [kind for kind in source.tensor_types if kind not in ("F32", "F16", "BF16")]
    if quantized and not requantize:
        raise SettingsError(
            f"{source.path.name} is quantized already ({', '.join(quantized)}), and would lose more",
            hint=Sentence("give the F16 or BF16 file of the model, or {requantize}"),
        )
    # The library would say so on standard error, in its own words.
    if damaged := without_numbers(source.tensors):
        raise UnsupportedModel(
            f"{damaged} of {source.path.name} has values that are not numbers", hint="the file is damaged; get it again"
        )
    n_bytes = _size(source, kind, n_threads=n_threads, requantize=requantize)
    room = shutil.disk_usage(out.absolute().parent).free
    if room < n_bytes:
        hint = "free some space, or choose another folder"
        raise DiskFull(f"{out}", needed_bytes=n_bytes, available_bytes=room, hint=hint)
    part = part_of(out)

    def listen(text: str) -> None:
        found = _DONE.search(text)
        if found is not None:
            on_progress(int(found[1]) - 1, int(found[2]))

    try:
        with library().listen(listen):
            _call(source, part, kind, n_threads=n_threads, requantize=requantize)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    on_progress(len(source.tensors), len(source.tensors))
    return out.stat().st_size


def part_of(out: Path) -> Path:
    """Return where a file is written before it is whole."""
    return beside(out, ".part")


def _size(source: ModelFile, kind: str, **how: Any) -> int:
    """Return the size of the new file, about."""
    log: list[str] = []
    with library().listen(log.append):
        _call(source, part_of(Path(os.devnull)), kind, dry_run=True, **how)
    found = _SIZE.search("".join(log))
    return round(float(found[1]) * (1 << 20)) if found else source.weight_bytes


def _call(source: ModelFile, out: Path, kind: str, *, n_threads: int, requantize: bool, dry_run: bool = False) -> None:
    c = library().c
    params = c.llama_model_quantize_default_params()
    params.ftype = getattr(c, _PREFIX + kind)
    params.nthread = n_threads
    params.allow_requantize = requantize
    params.dry_run = dry_run
    library().complaint()
    if c.llama_model_quantize(os.fsencode(source.path), os.fsencode(out), ctypes.byref(params)):
        raise BackendError(f"llama.cpp cannot quantize {source.path.name}: {library().complaint()}")
