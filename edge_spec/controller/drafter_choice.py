"""Choose a drafter where none is named, and check whether a head on hidden states can draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

from edge_spec.engines.registry import AUTO, engines, usable
from edge_spec.engines.registry import engine as engine_of
from edge_spec.errors import EdgeSpecError, ModelFileError, SettingsError, UnsupportedModel
from edge_spec.models import Family, ModelFile, check_pair, drafter_of, inspect
from edge_spec.models.catalogue import shipped_drafters
from edge_spec.models.heads import head_of, is_head, reads, require_a_model
from edge_spec.models.heads_beside import heads_beside
from edge_spec.models.made_drafters import made_drafters
from edge_spec.models.made_for import why_not_for
from edge_spec.models.mtp import mtp_layers
from edge_spec.models.pairs import drafter_file
from edge_spec.speculation.modes import Mode

__all__ = [
    "ReadFile",
    "check_head",
    "named",
    "own_drafter",
    "own_intermediate",
    "verifier_of",
    "why_passed_over",
]

ReadFile = Callable[[Path], ModelFile]
"""Reads the header of a file, see ``inspect``; implementations may cache."""


def own_drafter(
    family: Family, target: ModelFile, engine: str, read_file: ReadFile = inspect
) -> tuple[Path | None, str]:
    """Return the default drafter of a model: the chosen one, the one made here, or its family's.

    Else it is the target's own MTP layer, a head in a file beside the target, one that was made here for another file
    of the same model, or one that comes with edge-spec. Passed over are drafters that were made for another model or
    cannot be read, and heads of targets that give no hidden states.

    Args:
        engine: as asked for.

    Returns:
        Its file, which is the target's if it is the layer in it, None if there is none, and a sentence about what was
        passed over, if anything.
    """
    note = ""
    own = [path for path in (drafter_of(target, engine, read_file), family.draft) if path is not None]
    inside = [target.path] if mtp_layers(target.tensors) else []
    for path in chain(own, inside, _beside(family.target, read_file), _made_for(target, read_file)):
        why = why_passed_over(path, target, engine, read_file)
        if why is None:
            return path, note
        note = f"{named(path, target)} is not used: {why}"
    return None, note


def named(drafter: Path, target: ModelFile) -> str:
    """Return how sentences name a drafter, which may be a layer of its target."""
    return f"the MTP layer in {drafter.name}" if drafter == target.path else drafter.name


def _beside(target: Path, read_file: ReadFile) -> Iterator[Path]:
    """Yield heads beside a target, and what is named like one and cannot be read; no models of their own."""
    for path in heads_beside(target):
        with suppress(EdgeSpecError, OSError):
            if not head_of(read_file(path)):
                continue
        yield path


def _made_for(target: ModelFile, read_file: ReadFile) -> Iterator[Path]:
    """Yield drafters that were made for a file of the same model as the target's."""
    for path in (*made_drafters(), *shipped_drafters()):
        fits = False
        with suppress(ModelFileError, OSError):
            file = read_file(path)
            fits = file.trimmed is not None and why_not_for(file, target) is None
        if fits:
            yield path


def why_passed_over(path: Path, target: ModelFile, engine: str, read_file: ReadFile = inspect) -> str | None:
    """Return why a drafter that nobody asked for cannot draft for a target; None if nothing is known against it."""
    try:
        file = drafter_file(path, target, read_file)
        require_a_model(file)
        why = why_not_for(file, target) or _why_not(file, target, engine)
        if why is None and (file.trimmed is not None or is_head(file)):
            check_pair(target, file)
            _require_network(file, engine)
    except EdgeSpecError as error:
        return error.message
    return why and f"it {why}"


def own_intermediate(family: Family, draft: ModelFile | None, read_file: ReadFile = inspect) -> Path | None:
    """Return a family's intermediate model; None if it has none, or if the drafter is a head on another model."""
    if draft is None or family.intermediate is None or not is_head(draft):
        return family.intermediate
    return family.intermediate if reads(draft, read_file(family.intermediate)) else None


def verifier_of(files: Mapping[str, ModelFile]) -> str:
    """Return the role of the model that verifies the drafter's drafts.

    With an intermediate model that is this one, but for a head, which drafts for the model that it reads.
    """
    draft, between = files.get("draft"), files.get("intermediate")
    if draft is None or between is None or (is_head(draft) and not reads(draft, between)):
        return "target"
    return "intermediate"


def check_head(mode: Mode, files: Mapping[str, ModelFile], target: ModelFile, engine: str) -> None:
    """Raise if a head cannot draft.

    Args:
        files: of the smaller models, by role.
        engine: as asked for.

    Raises:
        SettingsError: it was requested to draft for an intermediate model.
        UnsupportedModel: the target does not give hidden states.
    """
    if "draft" not in files:
        return
    name, verifier = files["draft"].path.name, verifier_of(files)
    if "intermediate" in mode.needs and verifier == "target":
        raise SettingsError(
            f"is {mode.name!r}, and {name} reads the hidden states of {target.path.name} itself",
            argument="speculation",
            hint="leave out the intermediate model, or draft with a small model",
        )
    why = _why_not(files["draft"], files.get(verifier, target), engine)
    if why is not None:
        raise UnsupportedModel(
            f"{name} {why}",
            hint="leave the engine to edge-spec, or draft with a small model",
        )
    _require_network(files["draft"], engine)


def _require_network(file: ModelFile, engine: str) -> None:
    """Raise if a file is a head whose network no engine can express.

    Raises:
        UnsupportedModel: it is one.
    """
    asked = engines() if engine == AUTO else [engine_of(engine)]
    able = [each for each in usable(asked) if each.why_not(file) is None] if is_head(file) else []
    reasons = [each.why_not_network(file) for each in able]
    if reasons and None not in reasons:
        raise UnsupportedModel(str(reasons[0]), hint="get another head, or draft with a small model")


def _why_not(file: ModelFile, target: ModelFile, engine: str) -> str | None:
    """Return why a file cannot draft for a target on any of its engines; None if it can on one."""
    asked = engines() if engine == AUTO else [engine_of(engine)]
    able = usable(asked) or asked
    reasons = [
        each.why_not_drafter(file, target)
        for each in able
        if each.why_not(target) is None and each.why_not_here(target) is None
    ] or [each.why_not_drafter(file, target) for each in able]
    return None if None in reasons else reasons[0]
