"""Describe a model file by its header alone: what runs it, and which smaller models can draft for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_spec.engines.base import Engine
from edge_spec.engines.registry import engines
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import EdgeSpecError
from edge_spec.library.stores import all_targets
from edge_spec.models import Family, ModelFile, check_pair, inspect
from edge_spec.models.catalogue import shipped_drafters
from edge_spec.models.heads import head_of, is_head
from edge_spec.models.heads_beside import heads_beside
from edge_spec.models.made_drafters import Choice, choices, made_drafters
from edge_spec.models.mtp import mtp_layers
from edge_spec.models.pairs import drafter_file
from edge_spec.models.split_files import is_gguf

__all__ = ["Description", "candidates_for", "describe", "drafters_for"]

_LARGEST_SHARE = 0.5
"""A model larger than this share of the target's bytes is too slow to draft for it."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What the header of a model file says.

    Attributes:
        file: the inspected file.
        file_bytes: size of all its files.
        head: what it is if it is not a model of its own, such as ``an EAGLE-3 head``; else empty.
        n_mtp_layers: layers that predict further tokens.
        obstacles: by engine, why it cannot run the file; None if nothing speaks against it.
        taken_back: of a model with recurrent layers, by engine that runs it, the most drafted tokens that can be rolled
            back, which is the number of kept copies of its state. Empty for other models, which roll back any number.
        disk_bytes: by engine that writes a copy of the weights, the bytes of that copy.
        drafters: files that can draft for it, the smallest first.
        choices: drafters that were measured here and chosen, for each engine.
    """

    file: ModelFile
    file_bytes: int
    head: str
    n_mtp_layers: int
    obstacles: Mapping[str, str | None]
    taken_back: Mapping[str, int]
    disk_bytes: Mapping[str, int]
    drafters: tuple[ModelFile, ...]
    choices: tuple[Choice, ...] = ()


def describe(path: Path, *, candidates: Iterable[Path] = ()) -> Description:
    """Describe a model file without loading it.

    Args:
        candidates: files that may be able to draft for it; those that cannot be read are passed over.

    Raises:
        ModelFileError: it cannot be used as a model.
    """
    file = inspect(path)
    head = head_of(file)
    trimmed = file.trimmed is not None or is_head(file)
    only_drafts = "it only drafts for the model that it was made for" if trimmed else None
    refused = f"it is {head}" if head and not is_head(file) else only_drafts
    obstacles = {each.name: refused or _obstacle(each, file) for each in engines()}
    able = [each for each in engines() if obstacles[each.name] is None]
    written = {each.name: each.disk_bytes(file, cache_dir=None) for each in able}
    return Description(
        file=file,
        file_bytes=sum(part.stat().st_size for part in file.parts),
        head=head,
        n_mtp_layers=len(mtp_layers(file.tensors)),
        obstacles=obstacles,
        taken_back=_taken_back(file, able),
        disk_bytes={name: n_bytes for name, n_bytes in written.items() if n_bytes},
        drafters=() if refused else tuple(drafters_for(file, candidates)),
        choices=tuple(choices(file)),
    )


def _obstacle(each: Engine, file: ModelFile) -> str | None:
    """Return why an engine cannot run a file here, as a clause that says what helps; None if nothing is known."""
    return each.why_not(file) or each.lacking() or each.why_not_here(file)


def _taken_back(file: ModelFile, able: Iterable[Engine]) -> dict[str, int]:
    """See ``Description.taken_back``."""
    if not file.state_bytes:
        return {}
    return {each.name: each.rows(file, ModelSettings.max_rows, drafts=True)[0] - 1 for each in able}


def candidates_for(family: Family, models: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return files that may draft for a family's target: its own, chosen, made, and all others on this computer.

    Args:
        models: the user's model folder.
        environment: variables that say where other programs keep theirs.
    """
    target = inspect(family.target)
    chosen = [choice.path for choice in choices(target)]
    near = [family.draft, family.intermediate, *chosen, *made_drafters(), *shipped_drafters()]
    beside = [*sorted(filter(is_gguf, family.target.parent.iterdir())), *heads_beside(family.target)]
    found = [*(path for path in near if path is not None), *beside, *all_targets(models, environment)]
    inside = [family.target] if mtp_layers(target.tensors) else []
    return [*inside, *(path for path in found if path != family.target)]


def drafters_for(target: ModelFile, candidates: Iterable[Path]) -> list[ModelFile]:
    """Return the files that can draft for a model, the smallest first, each once."""
    found: dict[str, ModelFile] = {}
    for path in candidates:
        try:
            file = drafter_file(path, target)
            if head_of(file) and not is_head(file):
                continue
            if file.weight_bytes > target.weight_bytes * _LARGEST_SHARE and not is_head(file):
                continue
            check_pair(target, file)
        except (EdgeSpecError, OSError):
            continue
        found.setdefault(file.fingerprint, file)
    return sorted(found.values(), key=lambda file: file.weight_bytes)
