"""Models on this computer, wherever a program has put them: found by name, used where they lie.

Besides the user's own model folder these are the folders of other programs:

- Hugging Face's cache, ``models--ORG--REPO/snapshots/REVISION/FILE``: named ``ORG/REPO/FILE``,
- ollama's, ``manifests/HOST/NAMESPACE/MODEL/TAG``, whose weights are ``blobs/sha256-...``: named ``MODEL:TAG``,
- LM Studio's, ``PUBLISHER/REPO/FILE``: named so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edge_spec.errors import EdgeSpecError
from edge_spec.models.catalogue import family_names, resolve_family
from edge_spec.models.user_folder import named_in

__all__ = ["Found", "all_models", "all_targets", "locate"]

_MANIFEST = "family.json"
_WEIGHTS = "application/vnd.ollama.image.model"
_USUAL = ("registry.ollama.ai", "library")
"""What names of ollama's models leave out."""

_LATER_PART = re.compile(r".*-(?!00001-)\d{5}-of-\d{5}")
_PROJECTOR = "mmproj"


@dataclass(frozen=True)
class Found:
    """A model on this computer.

    Attributes:
        name: what ``edge-spec run`` calls it.
        path: the file, or a folder with a manifest.
        store: whose folder it is in.
    """

    name: str
    path: Path
    store: str


def locate(name: str, model_folder: Path, environment: Mapping[str, str]) -> Path | None:
    """Where the model of a name is; None for a path, a name of the package, and for what is not on this computer."""
    if name in family_names() or _exists(name):
        return None
    own = named_in(model_folder, name)
    if own is not None:
        return own
    return next((found.path for found in _of_others(environment) if found.name == name), None)


def all_models(model_folder: Path, environment: Mapping[str, str]) -> Iterator[Found]:
    """The models in the user's folder, and then those of other programs, by name within each."""
    yield from _own(model_folder)
    yield from _of_others(environment)


def all_targets(model_folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """The files of the models in all stores, of a family that of its target; those that cannot be used are left out."""
    for found in all_models(model_folder, environment):
        with suppress(EdgeSpecError):
            yield found.path if found.path.is_file() else resolve_family(found.path).target


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def _own(folder: Path) -> Iterator[Found]:
    for path in _entries(folder):
        if path.suffix.lower() == ".gguf" and not _is_part(path):
            yield Found(path.stem, path, "edge-spec")
        elif (path / _MANIFEST).is_file():
            yield Found(path.name, path, "edge-spec")


def _of_others(environment: Mapping[str, str]) -> Iterator[Found]:
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    hugging_face = Path(environment.get("HF_HOME") or home / ".cache" / "huggingface")
    yield from _hugging_face(Path(environment.get("HF_HUB_CACHE") or hugging_face / "hub"))
    yield from _ollama(Path(environment.get("OLLAMA_MODELS") or home / ".ollama" / "models"))
    for folder in (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"):
        yield from _lm_studio(folder)


def _hugging_face(folder: Path) -> Iterator[Found]:
    for repository in _entries(folder):
        kind, _, name = repository.name.partition("--")
        if kind != "models":
            continue
        seen = set()
        # The snapshot that was used last comes first: an older one of the same name is left out.
        for snapshot in sorted(_entries(repository / "snapshots"), key=_changed, reverse=True):
            for path in _ggufs_below(snapshot):
                inside = path.relative_to(snapshot).as_posix()
                if inside not in seen:
                    seen.add(inside)
                    yield Found(f"{name.replace('--', '/')}/{inside}", path, "Hugging Face")


def _ollama(folder: Path) -> Iterator[Found]:
    manifests = folder / "manifests"
    for manifest in sorted(manifests.glob("*/*/*/*")):
        *place, model, tag = manifest.relative_to(manifests).parts
        blob = _ollama_weights(manifest, folder / "blobs")
        if blob is not None:
            prefix = "" if tuple(place) == _USUAL else "/".join(place[1:] if place[0] == _USUAL[0] else place) + "/"
            yield Found(f"{prefix}{model}:{tag}", blob, "ollama")


def _ollama_weights(manifest: Path, blobs: Path) -> Path | None:
    try:
        layers = json.loads(manifest.read_text("utf-8"))["layers"]
        digest = next(str(each["digest"]) for each in layers if each["mediaType"] == _WEIGHTS)
        path = blobs / digest.replace(":", "-")
        return path if path.name.startswith("sha256-") and path.parent == blobs and path.is_file() else None
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return None


def _lm_studio(folder: Path) -> Iterator[Found]:
    for path in _ggufs_below(folder):
        yield Found(path.relative_to(folder).as_posix(), path, "LM Studio")


def _ggufs_below(folder: Path) -> Iterator[Path]:
    """The models in a folder and its folders; later parts of a model and what reads images are left out."""
    for path in sorted(folder.rglob("*.gguf")):
        if path.is_file() and not _is_part(path) and not path.name.lower().startswith(_PROJECTOR):
            yield path


def _is_part(path: Path) -> bool:
    return _LATER_PART.fullmatch(path.stem) is not None


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
