"""Resolve a name to an entry of the catalogue, ``org/repo[:QUANT]`` on the hub, or an address.

The catalogue is ``catalogue.toml`` in this folder, and a user's own file of the same form.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from edge_spec.errors import ModelNotFound, SettingsError
from edge_spec.foreign import read_toml

__all__ = ["ROLES", "Source", "Wanted", "drafter_like", "read_catalogue", "wanted"]

ROLES = ("target", "intermediate", "draft")
_PREFERRED = ("Q4_0", "Q4_K_M", "Q4_K_S", "IQ4_NL", "Q4_1", "Q5_K_M", "Q8_0", "Q1_0", "Q2_0", "TQ2_0", "TQ1_0")
"""Quantizations in order of preference, for requests that name none; models trained in few values have the last."""

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_REVISION = "main"
_NOT_THE_MODEL = ("gguf", "instruct", "it", "chat", "hf", "meta", "imatrix")
_HUBS = ("huggingface.co", "www.huggingface.co", "hf.co")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The location of a file.

    Attributes:
        repo: on the hub, as ``org/name``; elsewhere empty.
        patterns: of the file's name, the most wanted first; capitals do not count.
        revision: branch, tag or commit.
        address: of a file that is not on the hub.
    """

    repo: str = ""
    patterns: tuple[str, ...] = ()
    revision: str = _REVISION
    address: str = ""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Models to download.

    Attributes:
        name: what they are called here; empty to be named after the target's file.
        sources: by role; there is a target.
        tried: whether the project, or the owner of the catalogue, has run them.
        read: where their names were read; empty if they are of no catalogue.
    """

    name: str
    sources: Mapping[str, Source]
    tried: bool = True
    read: str = ""

    @property
    def note(self) -> str:
        """A sentence that users should read before the download; may be empty."""
        return "" if self.tried else f"the catalogue's entry {self.name} has not been tried by edge-spec's makers"


def wanted(name: str, own_catalogue: Path | None = None, *, endpoint: str = "") -> Wanted:
    """Return the models that a name asks for.

    Args:
        endpoint: address of the hub that is asked in place of the public one.

    Raises:
        ModelNotFound: the name is none of these. SettingsError: the user's catalogue is damaged.
    """
    catalogue = read_catalogue(own_catalogue)
    if name in catalogue:
        return catalogue[name]
    if name.startswith(("https://", "http://")):
        return _of_address(name, endpoint)
    repo, _, asked = name.partition(":")
    if _REPOSITORY.fullmatch(repo) and asked.isprintable():
        return Wanted(name="", sources={"target": Source(repo=repo, patterns=_patterns(asked))})
    near = get_close_matches(name, catalogue, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise ModelNotFound(
        f"the catalogue has no model {name!r}",
        hint=f"{meant}`edge-spec pull` lists those that it has; org/repo, org/repo:Q4_0 and addresses work too",
    )


def drafter_like(repo: str, catalogue: Mapping[str, Wanted]) -> str | None:
    """Return a drafter's repository for another publisher's file of a model in the catalogue."""
    for entry in catalogue.values():
        if "draft" in entry.sources and _model_of(entry.sources["target"].repo) == _model_of(repo):
            return entry.sources["draft"].repo
    return None


def _model_of(repo: str) -> str:
    """Return the model in the name of a repository, without its publisher and kind of file."""
    name = repo.rpartition("/")[2].lower().replace("_", "-")
    return "-".join(part for part in name.split("-") if part not in _NOT_THE_MODEL)


def read_catalogue(own: Path | None = None) -> dict[str, Wanted]:
    """Return the entries of the package's catalogue and of a user's own, which come first.

    Raises:
        SettingsError: the user's is damaged; the message says where.
    """
    packaged = tomllib.loads(files("edge_spec.library").joinpath("catalogue.toml").read_text("utf-8"))
    found = {name: _entry(name, entry) for name, entry in packaged.items()}
    if own is not None and own.is_file():
        try:
            entries = read_toml(own)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"{own} cannot be read: {error}", hint="it is a TOML file, see docs/models.md"
            ) from None
        found |= {name: _entry(name, entry, file=own) for name, entry in entries.items()}
    return found


def _entry(name: str, entry: Any, *, file: Path | None = None) -> Wanted:
    """Return an entry, checked.

    Raises:
        SettingsError: a key is missing or unknown.
    """

    def damaged(what: str) -> SettingsError:
        return SettingsError(f"{file or 'catalogue.toml'}: the entry {name!r} {what}", hint="see docs/models.md")

    if not re.fullmatch(r"[\w][\w.-]*", name, re.ASCII):
        raise damaged("has a name that is not letters, digits, dots, hyphens and underscores")
    if not isinstance(entry, dict) or not {"target", "read", "tried"} <= entry.keys():
        raise damaged("needs target, read and tried")
    unknown = entry.keys() - {*ROLES, "read", "tried"}
    if unknown:
        raise damaged(f"has an unknown key {min(unknown)!r}")
    if not isinstance(entry["read"], str) or not entry["read"] or not isinstance(entry["tried"], bool):
        raise damaged("needs a text as read, and true or false as tried")
    sources = {}
    for role in ROLES:
        place = entry.get(role)
        if place is None:
            continue
        if not isinstance(place, dict) or place.keys() != {"repo", "file"}:
            raise damaged(f"needs repo and file as {role}")
        repo, pattern = str(place["repo"]), str(place["file"])
        if not _REPOSITORY.fullmatch(repo) or not pattern.endswith(".gguf"):
            raise damaged(f"has a {role} that is not org/repo with a file that ends in .gguf")
        sources[role] = Source(repo=repo, patterns=(pattern,))
    return Wanted(name=name, sources=sources, tried=entry["tried"], read=entry["read"])


def _of_address(address: str, endpoint: str) -> Wanted:
    """Return a repository or a file of the hub, as a browser shows it, or a ``.gguf`` on any other server."""
    try:
        split = urlsplit(address)
    except ValueError as error:
        raise ModelNotFound(f"{address} is no address: {error}", hint="copy it from the browser") from None
    parts = [unquote(part) for part in split.path.split("/") if part]
    is_file = bool(parts) and parts[-1].lower().endswith(".gguf")
    hubs = set(_HUBS)
    with suppress(ValueError):  # ask the hub at the same address; its error says what is wrong
        hubs.add(urlsplit(endpoint).netloc.lower())
    if split.netloc.lower() in hubs:
        repo = "/".join(parts[:2])
        if is_file and len(parts) >= 5 and parts[2] in ("resolve", "blob"):
            source = Source(repo=repo, patterns=("/".join(parts[4:]),), revision=parts[3])
            return Wanted(name="", sources={"target": source})
        if _REPOSITORY.fullmatch(repo) and (len(parts) == 2 or parts[2] == "tree"):
            revision = parts[3] if len(parts) > 3 else _REVISION
            source = Source(repo=repo, patterns=_patterns(""), revision=revision)
            return Wanted(name="", sources={"target": source})
    elif is_file and split.netloc:
        return Wanted(name="", sources={"target": Source(address=address)})
    raise ModelNotFound(
        f"{address} is neither a .gguf file nor a repository on the hub",
        hint="give the address of the file itself; of a hub other than huggingface.co, set HF_ENDPOINT to its address",
    )


def _patterns(asked: str) -> tuple[str, ...]:
    if asked.lower().endswith(".gguf"):
        return (asked,)
    kinds = (asked,) if asked else _PREFERRED
    found = tuple(f"*{mark}{kind}{end}.gguf" for kind in kinds for mark in "-._" for end in ("", "-00001-of-*"))
    return found if asked else (*found, "*.gguf")
