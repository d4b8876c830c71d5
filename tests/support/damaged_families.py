"""Small models of every family, and each of their settings and tensors damaged, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from families import EXPERT_FAMILIES, FAMILIES
from gemma4_shapes import SHAPES, write_gemma4
from gguf_files import write_gguf
from hostile_gguf import HostileGGUF, read_gguf
from hybrid_shapes import SMALL_HYBRIDS, write_hybrid

from edge_spec.models.gguf.types import TYPES, TYPES_BY_NUMBER

__all__ = ["BASES", "GEMMA4", "HYBRIDS", "damaged", "model_of"]

_HYBRIDS = {name: SMALL_HYBRIDS[name] for name in ("lfm2", "qwen35")}
_EXPERTS = {"n_layers": 2, "attention": (1,), "experts": (8, 2, 96)}
HYBRIDS = _HYBRIDS | {f"{name}moe": replace(it, architecture=f"{name}moe", **_EXPERTS) for name, it in _HYBRIDS.items()}
GEMMA4 = {name: shape for name, shape in SHAPES.items() if name.startswith("as ")}
_ON_LLAMA = {
    "granitehybrid": replace(
        SMALL_HYBRIDS["nemotron_h"], architecture="granitehybrid", n_layers=2, inner=512, attention=(1,)
    )
}
"""Hybrids that our own engine does not run."""

BASES = (*FAMILIES, *EXPERT_FAMILIES, *HYBRIDS, *GEMMA4, *_ON_LLAMA)

_U32, _I32, _FLOAT, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_NUMBERS: dict[int, tuple[Any, ...]] = {
    _U32: (0, 1, 3, 2**24, 2**31, 2**32 - 1),
    _I32: (0, -1, 2**31 - 1),
    _FLOAT: (0.0, -1.0, 1e38, float("nan"), float("inf")),
    _BOOL: (False, True),
    _STRING: ("", "x"),
}
_STRIDE = 7919
"""A prime number: cases that follow each other are of different places in a file."""


def model_of(family: str, path: Path) -> HostileGGUF:
    """Write a small sound model of a family; what it says."""
    shape = (HYBRIDS | _ON_LLAMA).get(family)
    if shape is not None:
        write_hybrid(path, shape, "Q4_0", seed=1)
    elif family in GEMMA4:
        write_gemma4(path, GEMMA4[family], "Q4_0")
    else:
        write_gguf(path, **(FAMILIES | EXPERT_FAMILIES)[family])
    return read_gguf(path)


def damaged(number: int, folder: Path) -> HostileGGUF:
    """The model of a number, with one thing changed; ``said`` names it."""
    turn, which = divmod(number, len(BASES))
    family = BASES[which]
    path = folder / f"{family}.gguf"
    sound = read_gguf(path) if path.exists() else model_of(family, path)
    changes = [*_settings(sound), *_tensors(sound)]
    return changes[(turn + which) * _STRIDE % len(changes)]


def _settings(sound: HostileGGUF) -> Iterator[HostileGGUF]:
    """Each setting of the architecture, of any other value or kind, or missing."""
    architecture = str(sound.values["general.architecture"][1])
    for name, (kind, value) in sound.values.items():
        if not name.startswith(f"{architecture}."):
            continue
        others: list[tuple[int, Any]] = [(kind, each) for each in _NUMBERS.get(kind, ()) if each != value]
        if kind == _ARRAY:
            inner, items = value
            filled = [[each] * len(items) for each in _NUMBERS.get(inner, ())]
            others = [(_ARRAY, (inner, each)) for each in ([], items[:-1], [*items, items[-1]], items[::-1], *filled)]
        others += [(_STRING, "x"), (_ARRAY, (_U32, [])), (_ARRAY, (_U32, [1] * 300)), (_FLOAT, 0.5), (_U32, 1)]
        for each in others:
            yield HostileGGUF(sound.values | {name: each}, sound.tensors, [f"{name} = {each[1]!s:.60}"])
        rest = {other: each for other, each in sound.values.items() if other != name}
        yield HostileGGUF(rest, sound.tensors, [f"no {name}"])


def _tensors(sound: HostileGGUF) -> Iterator[HostileGGUF]:
    """A tensor of each role, of another shape or type, of other numbers, or missing."""
    roles = set()
    for name, (shape, kind, raw) in sound.tensors.items():
        role = "".join(part for part in name.split(".") if not part.isdigit())
        if role in roles:
            continue
        roles.add(role)
        shapes = (shape[::-1], (*shape, 1), (*shape, 2), (2 * shape[0], *shape[1:]), (*shape[:-1], shape[-1] // 2))
        for other in (*shapes, (*shape[:-1], 0), (prod(shape),), (32,)):
            if other != shape:
                yield _with(sound, name, other, kind, raw)
        for type_name in ("F32", "F16", "BF16", "Q4_0", "Q8_0", "Q6_K", "MXFP4", "I8", "I32", "F64"):
            if TYPES[type_name].number != kind:
                yield _with(sound, name, shape, TYPES[type_name].number, raw)
        for pattern in (b"\0\0\xc0\x7f", b"\xff\xff\xff\x7f", b"\0"):
            yield _with(sound, name, shape, kind, pattern * (len(raw) // len(pattern)))
        rest = {other: each for other, each in sound.tensors.items() if other != name}
        yield HostileGGUF(sound.values, rest, [f"no {name}"])


def _with(sound: HostileGGUF, name: str, shape: tuple[int, ...], kind: int, raw: bytes) -> HostileGGUF:
    """Change a tensor, whose numbers are repeated or cut off."""
    made = TYPES_BY_NUMBER[kind]
    if shape[0] % made.block:
        shape = (shape[0] + -shape[0] % made.block, *shape[1:])
    n_bytes = made.row_bytes(prod(shape))
    raw = (raw * (n_bytes // max(1, len(raw)) + 1))[:n_bytes]
    return HostileGGUF(sound.values, sound.tensors | {name: (shape, kind, raw)}, [f"{name} is {made.name} {shape}"])
