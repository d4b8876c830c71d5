"""Files that edge-spec keeps on the disk besides models: caches and conversations."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edge_spec.engines.records import FOLDER
from edge_spec.engines.registry import engines
from edge_spec.foreign import read_regular
from edge_spec.library.partial import held_elsewhere, interrupted
from edge_spec.models.beside import beside

__all__ = ["Kept", "clear", "kept_in", "size_of"]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A stored file or folder.

    Attributes:
        kind: ``transcription``, ``probes``, ``download``, ``drafter`` or ``conversations``.
        name: what it belongs to; empty if it belongs to no single model.
        path: a file or a folder.
        n_bytes: its size.
        is_cache: whether it is made again when it is needed.
    """

    kind: str
    name: str
    path: Path
    n_bytes: int
    is_cache: bool


def kept_in(cache_dir: Path, data_dir: Path, models: Path) -> Iterator[Kept]:
    """Yield all stored files and folders.

    Args:
        cache_dir: as of ``load``.
        data_dir: the user's folder for data that cannot be computed again.
        models: the user's model folder, where interrupted downloads lie as well.
    """
    for engine in engines():
        for name, folder in engine.kept_files(cache_dir):
            yield _kept("transcription", name, folder, is_cache=True)
    if (cache_dir / FOLDER).is_dir():
        yield _kept("probes", "", cache_dir / FOLDER, is_cache=True)
    for name, folder in interrupted(models):
        yield _kept("download", name, folder, is_cache=True)
    for drafter in sorted((data_dir / "drafters").glob("*/*.gguf")):
        yield _kept("drafter", _target_of(drafter), drafter, is_cache=False)
    if (data_dir / "conversations").is_dir():
        yield _kept("conversations", "", data_dir / "conversations", is_cache=False)


def clear(kept: Kept) -> bool:
    """Remove a cached item without disturbing processes that use it.

    Returns:
        Whether it was removed; a running download stays.

    Raises:
        ValueError: it is not a cache, so it would be lost. OSError: it cannot be removed, as on Windows while it is
            read.
    """
    if not kept.is_cache:
        raise ValueError(f"{kept.path} cannot be made again")
    if kept.kind == "download" and held_elsewhere(kept.path):
        return False
    # Rename first, so that other processes find all of it or nothing.
    gone = beside(kept.path, ".removed")
    shutil.rmtree(gone, ignore_errors=True)
    kept.path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    return True


def size_of(path: Path) -> int:
    """Return the size of a file or of all files in a folder; links are followed."""
    total = 0
    for each in path.rglob("*") if path.is_dir() else [path]:
        with contextlib.suppress(OSError):
            total += each.stat().st_size if each.is_file() else 0
    return total


def _target_of(drafter: Path) -> str:
    """Return the model that a drafter was made for, from its card, or else the name of its folder."""
    try:
        title = read_regular(drafter.parent / "README.md").decode().partition("\n")[0]
    except (OSError, ValueError):
        title = ""
    before = "# A drafter for "
    return title.removeprefix(before) if title.startswith(before) else drafter.parent.name


def _kept(kind: str, name: str, path: Path, *, is_cache: bool) -> Kept:
    return Kept(kind=kind, name=name, path=path, n_bytes=size_of(path), is_cache=is_cache)
