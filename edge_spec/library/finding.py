"""Resolve a name to files on the hub or at another address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from edge_spec.errors import ModelNotFound
from edge_spec.library.download import RemoteFile
from edge_spec.library.hub import Hub
from edge_spec.library.names import require_plain
from edge_spec.library.wanted import Source, Wanted
from edge_spec.models.split_files import is_later_part, parts_of, stem_of

__all__ = ["Pull", "find"]

_MAX_PARTS = 500
"""The most parts of a model; each one costs a request before anything is shown."""


@dataclass(frozen=True, kw_only=True)
class Pull:
    """The files of a model to download.

    Attributes:
        name: what the model is called here.
        files: by role; a model in several files has them all, the first one first.

    Raises:
        SettingsError: the name is not plain, see ``edge_spec.library.names``.
    """

    name: str
    files: Mapping[str, Sequence[RemoteFile]]

    def __post_init__(self) -> None:
        require_plain(self.name)

    @property
    def n_bytes(self) -> int:
        """The size of all files together."""
        return sum(file.n_bytes for files in self.files.values() for file in files)


def find(asked: Wanted, hub: Hub, name: str = "") -> Pull:
    """Return the files to download, on the hub or at an address.

    Args:
        name: what the model is to be called here; if empty, as the catalogue or its file says.

    Raises:
        ModelNotFound: a repository has no such file; the message says which it has. DownloadError: see ``Hub``.
        SettingsError: see ``Pull``.
    """
    held: dict[tuple[str, str], list[RemoteFile]] = {}
    files = {}
    for role, source in asked.sources.items():
        if source.address:
            # Ask for the last part first: it shows whether all parts exist.
            *others, last = _addresses(source.address)
            found = hub.look(last)
            files[role] = [*map(hub.look, others), found]
            continue
        place = (source.repo, source.revision)
        if place not in held:
            held[place] = [each for each in hub.files(*place) if each.path.lower().endswith(".gguf")]
        files[role] = _with_parts(_matching(source, held[place]), held[place])
    return Pull(name=name or asked.name or stem_of(files["target"][0].name), files=files)


def _addresses(address: str) -> list[str]:
    """Return the addresses of all files of a model, which are named as those in a folder are.

    Raises:
        ModelNotFound: it would have too many.
    """
    parts = urlsplit(address)
    paths = parts_of(parts.path)
    if len(paths) > _MAX_PARTS:
        raise ModelNotFound(
            f"{address} would be one of {len(paths):,} files, and a model has at most {_MAX_PARTS}",
            hint="check the address",
        )
    return [parts._replace(path=path).geturl() for path in paths]


def _matching(source: Source, files: Sequence[RemoteFile]) -> RemoteFile:
    for pattern in source.patterns:
        for file in sorted(files, key=lambda file: file.path):
            names = (file.name.lower(), file.path.lower())
            is_model = not is_later_part(file.name) and "mmproj" not in names[0]
            if is_model and any(fnmatchcase(each, pattern.lower()) for each in names):
                return file
    known = ", ".join(sorted(file.name for file in files)[:12]) or "no GGUF"
    raise ModelNotFound(
        f"{source.repo} has no file like {source.patterns[0]}", hint=f"it holds {known}; name one as org/repo:FILE.gguf"
    )


def _with_parts(first: RemoteFile, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    by_path = {file.path: file for file in files}
    paths = parts_of(first.path)
    missing = [path for path in paths if path not in by_path]
    if missing:
        raise ModelNotFound(f"{first.repo} lacks {missing[0]}", hint="choose another quantization, as org/repo:Q4_0")
    return [by_path[path] for path in paths]
