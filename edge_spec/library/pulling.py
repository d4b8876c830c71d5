"""From the hub into the model folder: looked at first, then fetched, checked, and only then put under its name.

Files of a model lie in a folder of its name, ``family.json`` among them, which is written last. What is fetched comes
into ``.partial``, under the hash of its content: an interrupted download continues there, whichever name asks for it.
A file that another program has already is not fetched but linked to.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from edge_spec.errors import ModelNotFound
from edge_spec.library.hub import Hub, RemoteFile, sha256_of
from edge_spec.library.stores import all_models
from edge_spec.library.wanted import Source, Wanted
from edge_spec.models.gguf.header import header_of

__all__ = ["Pull", "find", "preview", "pull", "remove"]

_MANIFEST, _PARTIAL = "family.json", ".partial"
_PARTS = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")
_ANY_PART = re.compile(r".*-\d{5}-of-\d{5}\.gguf")


@dataclass(frozen=True, kw_only=True)
class Pull:
    """What is to be fetched.

    Attributes:
        name: what the model is called here.
        files: by role; a model in several files has them all, the first one first.
    """

    name: str
    files: Mapping[str, Sequence[RemoteFile]]

    @property
    def n_bytes(self) -> int:
        """Of all files."""
        return sum(file.n_bytes for files in self.files.values() for file in files)


def find(asked: Wanted, hub: Hub) -> Pull:
    """The files on the hub that are meant.

    Raises:
        ModelNotFound: a repository has no such file; the message says which it has. DownloadError: see ``Hub``.
    """
    held: dict[tuple[str, str], list[RemoteFile]] = {}
    files = {}
    for role, source in asked.sources.items():
        place = (source.repo, source.revision)
        if place not in held:
            held[place] = [each for each in hub.files(*place) if each.path.lower().endswith(".gguf")]
        files[role] = _with_parts(_matching(source, held[place]), held[place])
    target = files["target"][0]
    found = _PARTS.fullmatch(target.name)
    return Pull(name=asked.name or (found[1] if found else Path(target.name).stem), files=files)


def _matching(source: Source, files: Sequence[RemoteFile]) -> RemoteFile:
    for pattern in source.patterns:
        for file in sorted(files, key=lambda file: file.path):
            is_later = _ANY_PART.fullmatch(file.name) and not _PARTS.fullmatch(file.name)
            names = (file.name.lower(), file.path.lower())
            if not is_later and "mmproj" not in names[0] and any(fnmatchcase(each, pattern.lower()) for each in names):
                return file
    known = ", ".join(sorted(file.name for file in files)[:12]) or "no GGUF"
    raise ModelNotFound(
        f"{source.repo} has no file like {source.patterns[0]}", hint=f"it holds {known}; name one as org/repo:FILE.gguf"
    )


def _with_parts(first: RemoteFile, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    found = _PARTS.fullmatch(first.path)
    if found is None:
        return [first]
    by_path = {file.path: file for file in files}
    paths = [f"{found[1]}-{number:05}-of-{found[2]}.gguf" for number in range(1, int(found[2]) + 1)]
    missing = [path for path in paths if path not in by_path]
    if missing:
        raise ModelNotFound(f"{first.repo} lacks {missing[0]}", hint="choose another quantisation, as org/repo:Q4_0")
    return [by_path[path] for path in paths]


def preview(pull: Pull, hub: Hub, folder: Path) -> dict[str, Path]:
    """Files with the headers of the models and no weights, by role: what ``inspect`` and ``plan`` need.

    They are as long as the models, but take no room on most disks.

    Raises:
        ModelFileError: a header is damaged. ModelNotFound, DownloadError: see ``Hub``.
    """
    found = {}
    for role, files in pull.files.items():
        for file in files:
            path = folder / role / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            remote = _Remote(hub, file)
            header = header_of(cast(Any, remote), path, file.n_bytes)
            with path.open("wb") as out:
                out.write(remote.held[: header.data_offset])
                out.truncate(file.n_bytes)
        found[role] = folder / role / files[0].name
    return found


class _Remote(io.RawIOBase):
    """A file on the hub that is read forward."""

    def __init__(self, hub: Hub, file: RemoteFile) -> None:
        self._hub = hub
        self._file = file
        self.held = bytearray()

    def read(self, size: int = -1) -> bytes:
        first = len(self.held)
        # At least a megabyte: each request takes as long as that.
        wanted = self._hub.read(self._file, first, first + max(size, 1 << 20))
        self.held += wanted
        return wanted


def pull(
    what: Pull,
    hub: Hub,
    folder: Path,
    environment: Mapping[str, str],
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Fetch what is not there, and put it under its name.

    Args:
        folder: of the user's models.
        environment: variables that say where other programs keep theirs.
        on_bytes: told bytes done and bytes in all; at the end they are equal.

    Returns:
        The folder of the model.

    Raises:
        ModelNotFound, DownloadError, DiskFull: see ``Hub.fetch``. What has come is kept for the next attempt.
    """
    place = folder / what.name
    names = _names_of(what)
    done = 0
    for file in (each for files in what.files.values() for each in files):
        final = place / names[file.repo, file.path]
        if not _is(final, file):
            place.mkdir(parents=True, exist_ok=True)
            copy = next((path for path in _copies(file, folder, environment) if _is(path, file)), None)
            if copy is not None:
                _link(copy, final)
            else:
                part = folder / _PARTIAL / (file.sha256 or _key(file))
                start = done
                hub.fetch(file, part, lambda held, start=start: on_bytes(start + held, what.n_bytes))  # type: ignore[misc]
                part.replace(final)
        done += file.n_bytes
        on_bytes(done, what.n_bytes)
    beside = place / f"{_MANIFEST}.new"
    manifest = {role: names[files[0].repo, files[0].path] for role, files in what.files.items()}
    beside.write_text(json.dumps(manifest), "utf-8")
    beside.replace(place / _MANIFEST)
    return place


def _names_of(what: Pull) -> dict[tuple[str, str], str]:
    """What each file is called here, by repository and path: as there, and with its role if two are called the same."""
    names: dict[tuple[str, str], str] = {}
    for role, files in what.files.items():
        taken = {name for place, name in names.items() if place not in {(file.repo, file.path) for file in files}}
        before = f"{role}-" if taken & {file.name for file in files} else ""
        for file in files:
            names.setdefault((file.repo, file.path), before + file.name)
    return names


def remove(name: str, folder: Path) -> int:
    """Remove a model from the user's folder; returns the bytes that were freed. What it only links to stays.

    Raises:
        ModelNotFound: it is not there, or what is there is a folder that no model was fetched into.
    """
    paths = [folder / name, folder / f"{name}.gguf"]
    path = next((path for path in paths if path.parent == folder and path.exists() and path != folder), None)
    if path is None or name.startswith("."):
        raise ModelNotFound(f"{folder} holds no model {name!r}", hint="`edge-spec list` shows what it holds")
    if path.is_dir() and not (path / _MANIFEST).is_file():
        # The model folder may be anybody's home: only what is certainly a model goes.
        raise ModelNotFound(f"{path} has no {_MANIFEST}", hint="remove the folder yourself if it is a model")
    files = list(path.rglob("*")) if path.is_dir() and not path.is_symlink() else [path]
    freed = sum(each.stat().st_size for each in files if each.is_file() and not each.is_symlink())
    if path.is_dir() and not path.is_symlink():
        # The manifest goes first: half a model has no name.
        (path / _MANIFEST).unlink()
        shutil.rmtree(path)
    else:
        path.unlink()
    return freed


def _copies(file: RemoteFile, folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Files on this computer of the same size."""
    if not file.sha256:
        return
    for found in all_models(folder, environment):
        for path in found.path.glob("*.gguf") if found.path.is_dir() else [found.path]:
            if path.is_file() and path.stat().st_size == file.n_bytes:
                yield path


def _is(path: Path, file: RemoteFile) -> bool:
    """Whether a file is there, and whole."""
    try:
        is_long = path.stat().st_size == file.n_bytes
    except OSError:
        return False
    return is_long and (not file.sha256 or sha256_of(path) == file.sha256)


def _link(copy: Path, final: Path) -> None:
    """Let a name stand for a file elsewhere; where links are not allowed, for a copy of it."""
    final.unlink(missing_ok=True)
    try:
        final.symlink_to(copy.resolve())
    except OSError:
        beside = final.with_name(f"{final.name}.new")
        try:
            os.link(copy, beside)
        except OSError:
            shutil.copyfile(copy, beside)
        beside.replace(final)


def _key(file: RemoteFile) -> str:
    return blake2b(f"{file.repo}/{file.commit}/{file.path}".encode(), digest_size=16).hexdigest()
