"""Fetch models from the hub: find what is here already, download the rest, verify it, and then move it into place.

Files of a model lie in a folder of its name, ``family.json`` among them. What is fetched comes into ``.partial`` first,
and all files of a model get their names at once: the folder is made there as well and renamed as a whole. A file that
another program has already is not fetched but linked to.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from difflib import get_close_matches
from pathlib import Path

from edge_spec.engines.base import Progress
from edge_spec.errors import ModelNotFound, SettingsError
from edge_spec.library.download import RemoteFile, disk_full_named, require_room, sha256_of
from edge_spec.library.finding import Pull
from edge_spec.library.hub import Hub
from edge_spec.library.names import file_called
from edge_spec.library.partial import FOLDER, Partial
from edge_spec.library.stores import all_models, own_models
from edge_spec.library.user_folder import named_in
from edge_spec.models.catalogue import MANIFEST, family_names
from edge_spec.models.split_files import is_gguf

__all__ = ["check_name", "pull", "remove", "to_fetch"]


def check_name(what: Pull, folder: Path) -> None:
    """Raise if the model's name is taken by something else; nothing is overwritten.

    A folder of that name is accepted if all that it holds are files of this model, compared by name and size.

    Raises:
        SettingsError: it is taken.
    """
    place = folder / what.name
    if what.name in family_names():
        raise SettingsError(
            f"{what.name} is the name of a model that comes with edge-spec", hint="give it another one with --as NAME"
        )
    wanted = {name: file.n_bytes for name, file in _by_name(what).items()} | {MANIFEST: None}
    other = folder / f"{what.name}.gguf"
    if place.is_dir():
        other = next((path for path in sorted(place.iterdir()) if not _is_one_of(path, wanted)), place)
        if other == place:
            return
    if place.exists() or place.is_symlink() or other.exists():
        raise SettingsError(
            f"{what.name} is the name of something else here: {other}",
            hint=f"give it another name with --as NAME, or remove that one with `edge-spec rm {what.name}`",
        )


def _is_one_of(path: Path, wanted: Mapping[str, int | None]) -> bool:
    try:
        return path.name in wanted and wanted[path.name] in (None, path.stat().st_size)
    except OSError:  # a link whose file is gone: it is fetched again
        return True


def to_fetch(what: Pull, folder: Path, environment: Mapping[str, str]) -> int:
    """Return how many bytes are missing on this computer, judged by sizes of files.

    Raises:
        DiskFull: there is no room for them.
    """
    missing = [
        file
        for name, file in _by_name(what).items()
        if not any(_size_of(path) == file.n_bytes for path in _places(name, file, what, folder, environment))
    ]
    return _room_for(missing, folder)


def _room_for(missing: Iterable[RemoteFile], folder: Path) -> int:
    """Return the number of bytes still to fetch, and raise if the disk lacks room for all of them."""
    left = {file.key: max(0, file.n_bytes - Partial(folder, file).n_bytes) for file in missing}
    n_bytes = sum(left.values())
    require_room(folder, n_bytes, f"the model ({len(left)} files)" if len(left) > 1 else "the model")
    return n_bytes


def pull(
    what: Pull,
    hub: Hub,
    folder: Path,
    environment: Mapping[str, str],
    on_progress: Progress = lambda stage, done, total: None,
) -> Path:
    """Download the missing files of a model and move them under its name.

    Args:
        folder: of the user's models.
        environment: variables that say where other programs keep theirs.
        on_progress: called with a stage, ``checking`` of a file or ``fetching`` of all, bytes done and bytes in all;
            at the end of a stage they are equal.

    Returns:
        The folder of the model.

    Raises:
        SettingsError: the name is taken, see ``check_name``.
        ModelNotFound, DownloadError, DiskFull: see ``Hub.fetch``. Partial downloads are kept for the next attempt.
    """
    check_name(what, folder)
    place, files = folder / what.name, _by_name(what)
    there: dict[str, Path] = {}
    for name, file in files.items():
        copies = _places(name, file, what, folder, environment)
        found = next((path for path in copies if _is(path, file, on_progress)), None)
        if found is not None:
            there[name] = found
    missing = {name: file for name, file in files.items() if name not in there}
    _room_for(missing.values(), folder)
    with ExitStack() as held:
        partials = {file.key: Partial(folder, file) for file in missing.values()}
        for each in partials.values():
            held.enter_context(each.alone())
        done = sum(files[name].n_bytes for name in there)
        for file in missing.values():
            before = done

            def on_stage(stage: str, n: int, file: RemoteFile = file, before: int = before) -> None:
                if stage == "fetching":
                    on_progress(stage, before + n, what.n_bytes)
                else:
                    on_progress(f"{stage} {file.name}", n, file.n_bytes)

            hub.fetch(file, partials[file.key].path, on_stage)
            done += file.n_bytes
        came = {name: partials[file.key].path for name, file in missing.items()}
        _put(place, _staging(folder, what), _manifest(what), there, came)
    on_progress("fetching", what.n_bytes, what.n_bytes)
    return place


def _put(
    place: Path, staging: Path, manifest: Mapping[str, str], there: Mapping[str, Path], came: Mapping[str, Path]
) -> None:
    """Move a model's files under its name: as one folder or, if that exists already, one by one, the manifest last.

    Args:
        manifest: file names by role.
        there, came: by file name, what lies elsewhere on this computer, and what was fetched.
    """
    staging.mkdir(parents=True, exist_ok=True)
    for name, path in there.items():
        if path.parent not in (place, staging):
            _link(path, staging / name)
    for name, path in came.items():
        path.replace(staging / name)
    (staging / MANIFEST).unlink(missing_ok=True)  # it may be a link
    (staging / MANIFEST).write_text(json.dumps(manifest), "utf-8")
    for path in staging.iterdir():
        _sync(path)
    if place.exists():
        names = [path.name for path in staging.iterdir() if path.name != MANIFEST]
        for name in (*names, MANIFEST):
            (staging / name).replace(place / name)
        staging.rmdir()
    else:
        _sync(staging)
        staging.rename(place)
    _sync(place)
    _sync(place.parent)


def _sync(path: Path) -> None:
    """Flush a file or a folder to disk before anything relies on it; folders only on POSIX, where that is possible."""
    if path.is_symlink() or (path.is_dir() and os.name != "posix"):
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _staging(folder: Path, what: Pull) -> Path:
    return folder / FOLDER / f"new-{what.name}"


def _manifest(what: Pull) -> dict[str, str]:
    names = {file.key: name for name, file in _by_name(what).items()}
    return {role: names[files[0].key] for role, files in what.files.items()}


def _by_name(what: Pull) -> dict[str, RemoteFile]:
    """Return the files by their local name: the remote name, prefixed with the role if two roles share a name."""
    found: dict[str, RemoteFile] = {}
    for role, files in what.files.items():
        held = {file.key for file in found.values()}
        names = [file_called(file.name, role, number, len(files)) for number, file in enumerate(files, 1)]
        named = [(name, file) for name, file in zip(names, files, strict=True) if file.key not in held]
        before = f"{role}-" if any(name in found for name, _ in named) else ""
        found |= {before + name: file for name, file in named}
    return found


def remove(name: str, folder: Path) -> int:
    """Remove a model from the user's folder; returns the bytes that were freed. What it only links to stays.

    Raises:
        ModelNotFound: it is not there, comes with the package, or what is there is a folder that no model was fetched
            into.
    """
    path = named_in(folder, name)
    if path is None and name in family_names():
        raise ModelNotFound(f"{name} comes with edge-spec", hint="it is removed with the package only")
    if path is None:
        near = get_close_matches(name, [each.name for each in own_models(folder)], 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ModelNotFound(f"{folder} holds no model {name!r}", hint=f"{meant}`edge-spec list` shows what it holds")
    if path.is_dir() and not (path / MANIFEST).is_file():
        # The model folder may be any folder, even a home folder: remove only what is certainly a model.
        raise ModelNotFound(f"{path} has no {MANIFEST}", hint="remove the folder yourself if it is a model")
    files = list(path.rglob("*")) if path.is_dir() and not path.is_symlink() else [path]
    freed = sum(each.stat().st_size for each in files if each.is_file() and not each.is_symlink())
    if path.is_dir() and not path.is_symlink():
        # Delete the manifest first: an interrupted removal must not leave one that names missing files.
        (path / MANIFEST).unlink()
        shutil.rmtree(path)
    else:
        path.unlink()
    return freed


def _places(name: str, file: RemoteFile, what: Pull, folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield paths where a file may exist already: under its name, partly downloaded, or in another program's folder."""
    yield folder / what.name / name
    yield _staging(folder, what) / name
    if file.local is not None:
        yield file.local
    if not file.sha256:
        return
    for found in all_models(folder, environment):
        for path in sorted(filter(is_gguf, found.path.iterdir())) if found.path.is_dir() else [found.path]:
            if _size_of(path) == file.n_bytes:
                yield path


def _size_of(path: Path) -> int:
    """Return the size of a file, -1 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _is(path: Path, file: RemoteFile, on_progress: Progress) -> bool:
    """Return whether a file exists and is complete; if its hash is unknown, only the size is compared."""
    if _size_of(path) != file.n_bytes:
        return False
    stage = f"checking {path.name}"
    return not file.sha256 or file.sha256 == sha256_of(path, lambda done: on_progress(stage, done, file.n_bytes))


def _link(copy: Path, final: Path) -> None:
    """Make ``final`` a link to a file elsewhere, or a copy of that file where links are not allowed."""
    final.unlink(missing_ok=True)
    try:
        final.symlink_to(copy.resolve())
    except OSError:
        try:
            os.link(copy, final)
        except OSError:
            n_bytes = _size_of(copy)
            require_room(final.parent, n_bytes, final.name)
            with disk_full_named(final.parent, lambda: n_bytes, final.name):
                shutil.copyfile(copy, final)
