"""Find models on this computer by name, also in folders of other programs.

Besides the user's own model folder these are the folders of other programs:

- Hugging Face's cache, ``models--ORG--REPO/snapshots/REVISION/FILE``: named ``ORG/REPO/FILE``,
- ollama's, ``manifests/HOST/NAMESPACE/MODEL/TAG``, whose weights are ``blobs/sha256-...``: named ``MODEL:TAG``,
- LM Studio's, ``PUBLISHER/REPO/FILE``: named so.

An ONNX model in Hugging Face's cache is a folder, and named ``ORG/REPO``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from edge_spec.errors import EdgeSpecError, ModelNotFound
from edge_spec.foreign import read_json, read_regular
from edge_spec.library.user_folder import model_folder, named_in
from edge_spec.library.wanted import read_catalogue
from edge_spec.models.catalogue import MANIFEST, family_names, resolve_family
from edge_spec.models.split_files import is_gguf, is_later_part

__all__ = ["Found", "all_models", "all_targets", "locate", "match", "name_of", "own_models"]

_WEIGHTS = "application/vnd.ollama.image.model"
_USUAL = ("registry.ollama.ai", "library")
"""The parts of a path that ollama's names leave out."""

_LATEST = ":latest"
"""The tag that a name of ollama's may leave out."""

_HASHED = ("sha256-", "sha256:")

_OLLAMA = "ollama"
_OWN = "edge-spec"
"""The store that is the user's own model folder."""

_PROJECTOR = "mmproj"
_MOST_LEVELS, _MOST_FOLDERS = 8, 2000
"""Limits of the search: settings of another program may name a whole disk."""

_OF_A_SERVICE = (Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/models"))
"""ollama's folder of models on Linux when it runs as a service."""


@dataclass(frozen=True)
class Found:
    """A model on this computer: a path that knows by which name it was found.

    Attributes:
        name: what ``edge-spec run`` calls it.
        path: the file, or a folder with a manifest.
        store: whose folder it is in.
    """

    name: str
    path: Path
    store: str

    def __fspath__(self) -> str:
        return os.fspath(self.path)


def name_of(model: str | os.PathLike[str] | None) -> str:
    """Return a model's name for people: the one it was found by, or that of its file without the suffix.

    Args:
        model: what ``located`` returns; None for the default model.
    """
    if model is None:
        return resolve_family().name
    if isinstance(model, Found):
        return model.name
    found = Path(model).name or os.fspath(model)
    return re.sub(r"(?<=.)\.(gguf|onnx)$", "", found, flags=re.IGNORECASE)


def locate(name: str, own: Path | None, environment: Mapping[str, str]) -> Found | None:
    """Return the model with a name; None for a path, for a name of the package, and for text that is no name.

    Letters may be in another case. The tag, the folder, the ending ``.gguf`` and, of a repository, the file may be left
    out where only one model is meant.

    Args:
        own: the user's folder; if None, the one that the environment or the settings name.
        environment: variables, which say where programs keep their models.

    Raises:
        ModelNotFound: it is not on this computer, and ``edge-spec pull`` knows where it is, or another name was meant,
            or it can mean several models.
    """
    if name.casefold() in family_names() or _exists(name):
        return None
    folder = own or model_folder(environment)
    path = named_in(folder, name)
    if path is not None:
        return Found(name, path, _OWN)
    others = list(_of_others(environment))
    found = _exactly(name, others)
    if found is not None:
        return found
    catalogue = read_catalogue()
    if name in catalogue:
        raise ModelNotFound(f"the model {name} is not on this computer", hint=f"fetch it: edge-spec pull {name}")
    all_here = [*own_models(folder), *others]
    if (found := _meant(name, all_here)) is not None:
        return found
    here = [*family_names(), *(each.name for each in all_here)]
    near = get_close_matches(name, (*here, *catalogue), 1)
    if near:
        fetch = "" if near[0] in here else f" fetch it: edge-spec pull {near[0]};"
        raise ModelNotFound(
            f"there is no model {name!r}",
            hint=f"did you mean {near[0]}?{fetch} `edge-spec list` shows what is here; paths work too",
        )
    return None


def match(name: str, models: Sequence[Found]) -> Found | None:
    """Return the one of some models that a name means, as ``locate`` does; None if there is none.

    Raises:
        ModelNotFound: it can mean several.
    """
    return _exactly(name, models) or _meant(name, models)


def _exactly(name: str, models: Sequence[Found]) -> Found | None:
    short = (each for each in models if each.store == _OLLAMA and each.name == name + _LATEST)
    return next((each for each in models if each.name == name), None) or next(short, None)


def _meant(name: str, models: Sequence[Found]) -> Found | None:
    """Return the model that a name means in other letters, or for short; None if there is none."""
    wanted = name.casefold()
    meant = {each.path: each for each in models if each.name.casefold() == wanted}
    meant = meant or {each.path: each for each in models if wanted in _short_names(each)}
    if len(meant) > 1:
        names = ", ".join(each.name for each in meant.values())
        raise ModelNotFound(f"{name!r} can mean {len(meant)} models", hint=f"name one of them: {names}")
    return next(iter(meant.values()), None)


def all_models(own: Path, environment: Mapping[str, str]) -> Iterator[Found]:
    """Yield the models in the user's folder, and then those of other programs, by name within each."""
    yield from own_models(own)
    yield from _of_others(environment)


def all_targets(own: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files of the models in all stores, of a family that of its target.

    Those that cannot be used are left out.
    """
    for found in all_models(own, environment):
        with suppress(EdgeSpecError):
            yield found.path if found.path.is_file() else resolve_family(found.path).target


def _short_names(found: Found) -> Iterator[str]:
    """Yield what a model may be called for short, in small letters."""
    whole = found.name.casefold()
    repository, _, file = whole.rpartition("/")
    if found.store == _OLLAMA:
        yield from (each for name in (whole, file) for each in (name, name.partition(":")[0]))
    else:
        yield from (
            each for name in (whole, file, found.path.name.casefold()) for each in (name, name.removesuffix(".gguf"))
        )
        yield repository


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def own_models(folder: Path) -> Iterator[Found]:
    """Yield the models in the user's folder, by name."""
    for path in _entries(folder):
        if is_gguf(path) and path.is_file() and not is_later_part(path.name):
            yield Found(path.stem, path, _OWN)
        elif (path / MANIFEST).is_file() or _holds_a_model(path):
            yield Found(path.name, path, _OWN)


def _of_others(environment: Mapping[str, str]) -> Iterator[Found]:
    try:
        home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    except RuntimeError:  # there is no home folder, so there are no models in it
        return
    caches = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    hugging_face = Path(environment.get("HF_HOME") or caches / "huggingface")
    named = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    yield from _hugging_face(Path(named or hugging_face / "hub"))
    moved = environment.get("OLLAMA_MODELS")
    for folder in [Path(moved)] if moved else [home / ".ollama" / "models", *_OF_A_SERVICE]:
        yield from _ollama(folder)
    for folder in _folders_of_lm_studio(home):
        yield from _lm_studio(folder)


def _folders_of_lm_studio(home: Path) -> list[Path]:
    """Return LM Studio's folders: the usual ones, that of ``.lmstudio-home-pointer``, and that of its settings."""
    found, homes = [], [home / ".lmstudio", home / ".cache" / "lm-studio"]
    with suppress(OSError, ValueError):
        homes.insert(0, Path(read_regular(home / ".lmstudio-home-pointer").decode().strip()))
    for own in homes:
        with suppress(OSError, ValueError, LookupError, TypeError):
            found.append(Path(read_json(own / "settings.json")["downloadsFolder"]))
        found.append(own / "models")
    # An empty pointer would be the folder in which the command happens to run.
    return [each for each in dict.fromkeys(found) if each.is_absolute()]


def _hugging_face(folder: Path) -> Iterator[Found]:
    for repository in _entries(folder):
        kind, _, name = repository.name.partition("--")
        if kind != "models":
            continue
        repo, seen = name.replace("--", "/"), set()
        # The snapshot that was used last comes first: an older one of the same name is left out.
        for snapshot in sorted(_entries(repository / "snapshots"), key=_changed, reverse=True):
            for path in _ggufs_below(snapshot):
                inside = path.relative_to(snapshot).as_posix()
                if inside not in seen:
                    seen.add(inside)
                    yield Found(f"{repo}/{inside}", path, "Hugging Face")
            if repo not in seen and _holds_onnx(snapshot):
                seen.add(repo)
                yield Found(repo, snapshot, "Hugging Face")


def _ollama(folder: Path) -> Iterator[Found]:
    manifests = folder / "manifests"
    for manifest in sorted(manifests.glob("*/*/*/*")):
        *place, model, tag = manifest.relative_to(manifests).parts
        blob = _ollama_weights(manifest, folder / "blobs")
        if blob is not None:
            prefix = "" if tuple(place) == _USUAL else "/".join(place[1:] if place[0] == _USUAL[0] else place) + "/"
            yield Found(f"{prefix}{model}:{tag}", blob, _OLLAMA)


def _ollama_weights(manifest: Path, blobs: Path) -> Path | None:
    try:
        layers = read_json(manifest)["layers"]
        digest = next(str(each["digest"]) for each in layers if each["mediaType"] == _WEIGHTS)
        # Early versions of ollama kept the colon.
        paths = [blobs / digest.replace(":", "-"), blobs / digest]
        blob = next((path for path in paths if path.parent == blobs and path.is_file()), None)
        return blob if digest.startswith(_HASHED) else None
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return None


def _lm_studio(folder: Path) -> Iterator[Found]:
    for path in _ggufs_below(folder):
        yield Found(path.relative_to(folder).as_posix(), path, "LM Studio")


def _ggufs_below(folder: Path) -> Iterator[Path]:
    """Yield the models below a folder, without later parts of a model and projectors for images."""
    for path in sorted(filter(is_gguf, _below(folder))):
        if path.is_file() and not is_later_part(path.name) and not path.name.lower().startswith(_PROJECTOR):
            yield path


def _below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder, each folder once, up to a limit."""
    level, n_folders, seen = [folder], 0, set[tuple[int, int]]()
    for _ in range(_MOST_LEVELS):
        below: list[Path] = []
        for each in level[: max(0, _MOST_FOLDERS - n_folders)]:
            with suppress(OSError, ValueError), os.scandir(each) as entries:
                for entry in entries:
                    yield Path(entry.path)
                    if entry.is_dir():
                        # Links may lead back to a visited folder.
                        there = Path(entry.path).stat()
                        if (there.st_dev, there.st_ino) not in seen:
                            seen.add((there.st_dev, there.st_ino))
                            below.append(Path(entry.path))
        n_folders += len(level)
        level = sorted(below)


def _holds_a_model(folder: Path) -> bool:
    return folder.is_dir() and (any(_ggufs_below(folder)) or _holds_onnx(folder))


def _holds_onnx(folder: Path) -> bool:
    """Return whether a folder holds a published model, with graphs in it or in its folder ``onnx``."""
    graphs = (*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx"))
    return bool(graphs) and (folder / "tokenizer.json").is_file()


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
