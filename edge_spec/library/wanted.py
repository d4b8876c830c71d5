"""What a name asks the hub for: an entry of the catalogue, ``org/repo[:QUANT]``, or an address of the hub.

The catalogue is ``catalogue.toml`` in this folder, and a user's own file of the same form.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from edge_spec.errors import ModelNotFound, SettingsError

__all__ = ["ROLES", "Source", "Wanted", "read_catalogue", "wanted"]

ROLES = ("target", "intermediate", "draft")
_PREFERRED = ("Q4_0", "Q4_K_M", "Q4_K_S", "IQ4_NL", "Q4_1", "Q5_K_M", "Q8_0")
"""Quantisations of which the first that a repository has is taken, where none is asked for."""

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_REVISION = "main"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a file is on the hub.

    Attributes:
        repo: as ``org/name``.
        patterns: of the file's name, the most wanted first; capitals do not count.
        revision: branch, tag or commit.
    """

    repo: str
    patterns: tuple[str, ...]
    revision: str = _REVISION


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Models to fetch.

    Attributes:
        name: what they are called here; empty to be named after the target's file.
        sources: by role; there is a target.
        note: what should be known before, a sentence; empty if there is nothing.
    """

    name: str
    sources: Mapping[str, Source]
    note: str = ""


def wanted(name: str, own_catalogue: Path | None = None) -> Wanted:
    """What to fetch for a name.

    Raises:
        ModelNotFound: it is none of these. SettingsError: the user's catalogue is damaged.
    """
    catalogue = read_catalogue(own_catalogue)
    if name in catalogue:
        return catalogue[name]
    if name.startswith(("https://", "http://")):
        return _of_address(name)
    repo, _, asked = name.partition(":")
    if _REPOSITORY.fullmatch(repo) and asked.isprintable():
        return Wanted(name="", sources={"target": Source(repo=repo, patterns=_patterns(asked))})
    known = ", ".join(sorted(catalogue))
    raise ModelNotFound(
        f"the catalogue has no model {name!r}", hint=f"it has {known}; org/repo, org/repo:Q4_0 and addresses work too"
    )


def read_catalogue(own: Path | None = None) -> dict[str, Wanted]:
    """The entries of the package's catalogue and of a user's own, which come first.

    Raises:
        SettingsError: the user's is damaged; the message says where.
    """
    packaged = tomllib.loads(files("edge_spec.library").joinpath("catalogue.toml").read_text("utf-8"))
    found = {name: _entry(name, entry) for name, entry in packaged.items()}
    if own is not None and own.is_file():
        try:
            entries = tomllib.loads(own.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"{own} cannot be read: {error}", hint="it is a TOML file, see docs/models.md"
            ) from None
        found |= {name: _entry(name, entry, file=own) for name, entry in entries.items()}
    return found


def _entry(name: str, entry: Any, *, file: Path | None = None) -> Wanted:
    """An entry, checked.

    Raises:
        SettingsError: it lacks something or has something unknown.
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
    note = "" if entry["tried"] else f"the catalogue's entry {name} has not been tried by edge-spec's makers"
    return Wanted(name=name, sources=sources, note=note)


def _of_address(address: str) -> Wanted:
    """``https://HOST/org/repo[/resolve/REVISION/FILE]``, as a browser shows it."""
    parts = [unquote(part) for part in urlsplit(address).path.split("/") if part]
    if len(parts) >= 5 and parts[2] in ("resolve", "blob") and parts[-1].lower().endswith(".gguf"):
        source = Source(repo="/".join(parts[:2]), patterns=("/".join(parts[4:]),), revision=parts[3])
        return Wanted(name="", sources={"target": source})
    if len(parts) >= 2 and _REPOSITORY.fullmatch("/".join(parts[:2])) and (len(parts) == 2 or parts[2] == "tree"):
        return Wanted(name="", sources={"target": Source(repo="/".join(parts[:2]), patterns=_patterns(""))})
    raise ModelNotFound(
        f"{address} is not the address of a repository or a .gguf file on the hub",
        hint="download it with a browser, and give its path to `edge-spec run`",
    )


def _patterns(asked: str) -> tuple[str, ...]:
    if asked.lower().endswith(".gguf"):
        return (asked,)
    kinds = (asked,) if asked else _PREFERRED
    found = tuple(f"*{mark}{kind}{end}.gguf" for kind in kinds for mark in "-._" for end in ("", "-00001-of-*"))
    return found if asked else (*found, "*.gguf")
