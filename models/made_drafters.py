"""The drafter of a model on this computer: chosen by ``edge-spec pair``, or made by ``edge-spec drafter make``.

Both are in the user's data folder, ``drafters/FINGERPRINT``, the fingerprint being the target's (see ``inspect``): a
made one as ``drafter.gguf`` next to its card, a chosen one as ``chosen.json``, which names a file elsewhere for each
engine. A made one also serves the other files of its target's model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_spec.errors import ModelFileError
from edge_spec.foreign import read_json
from edge_spec.models.beside import write_whole
from edge_spec.models.inspection import inspect
from edge_spec.models.model_file import ModelFile

__all__ = [
    "Choice",
    "choices",
    "choose_drafter",
    "chosen_drafter",
    "drafter_of",
    "forget_drafter",
    "made_drafter",
    "made_drafter_folder",
    "made_drafters",
]

_FILE, _CHOICE = "drafter.gguf", "chosen.json"


def made_drafter_folder(target: ModelFile) -> Path:
    """Return the folder for the drafter of a model, which need not exist."""
    return _folder() / target.fingerprint


def made_drafters() -> list[Path]:
    """Return the drafters that were made for any model."""
    return sorted(_folder().glob(f"*/{_FILE}"))


def _folder() -> Path:
    from platformdirs import user_data_path

    return user_data_path("edge-spec") / "drafters"


def made_drafter(target: ModelFile) -> Path | None:
    """Return the made drafter of a model; None if there is none."""
    path = made_drafter_folder(target) / _FILE
    return path if path.is_file() else None


def drafter_of(
    target: ModelFile, engine: str = "auto", read_file: Callable[[Path], ModelFile] = inspect
) -> Path | None:
    """Return the default drafter of a model: the chosen one, or else the made one."""
    choice = chosen_drafter(target, engine, read_file)
    return choice.path if choice is not None else made_drafter(target)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A drafter that was chosen for a model.

    Attributes:
        path, fingerprint: the drafter's.
        engine: that it was measured with, as it was asked for.
        measured: the results of the measurement, among them ``speed_up`` against plain decoding on this computer, and
            its 95 % ``interval``.
    """

    path: Path
    fingerprint: str
    engine: str
    measured: Mapping[str, Any]

    @property
    def speed_up(self) -> tuple[float, float, float] | None:
        """The speed-up over plain decoding with its interval; None if the interval includes 1."""
        with suppress(LookupError, TypeError, ValueError):
            speed_up, (low, high) = self.measured["speed_up"], self.measured["interval"]
            if not low <= 1 <= high:
                return float(speed_up), float(low), float(high)
        return None


def choices(target: ModelFile) -> list[Choice]:
    """Return the choices for a model, by engine, usable or not."""
    try:
        content = read_json(made_drafter_folder(target) / _CHOICE)
        # Files written before engines were told apart hold a single choice.
        by_engine = content.get("engines", {"auto": content})
        return [
            Choice(
                path=Path(each["path"]),
                fingerprint=str(each["fingerprint"]),
                engine=str(engine),
                measured=dict(each.get("measured", {})),
            )
            for engine, each in by_engine.items()
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def chosen_drafter(
    target: ModelFile, engine: str = "auto", read_file: Callable[[Path], ModelFile] = inspect
) -> Choice | None:
    """Return the drafter that was chosen for a model.

    None if there is none, or if its file is gone or another one now.
    """
    for choice in choices(target):
        if choice.engine == engine:
            with suppress(OSError, ModelFileError):
                return choice if read_file(choice.path).fingerprint == choice.fingerprint else None
    return None


def choose_drafter(target: ModelFile, drafter: ModelFile, measured: Mapping[str, Any], engine: str = "auto") -> Path:
    """Remember a drafter for a model; returns the file that holds the choice.

    Args:
        measured: what speaks for it, see ``Choice``.
        engine: for which it is chosen.

    Raises:
        OSError: it cannot be written.
    """
    kept = [each for each in choices(target) if each.engine != engine]
    # Of the file, of which the drafter may be a layer.
    path, fingerprint = drafter.path.resolve(), inspect(drafter.path).fingerprint
    return _write(target, [*kept, Choice(path=path, fingerprint=fingerprint, engine=engine, measured=measured)])


def forget_drafter(target: ModelFile, engine: str | None = None) -> bool:
    """Forget the choices for a model, for one engine or for all; return whether there were any."""
    found = choices(target)
    kept = [each for each in found if engine is not None and each.engine != engine]
    if kept != found:
        _write(target, kept)
    return kept != found


def _write(target: ModelFile, kept: list[Choice]) -> Path:
    path = made_drafter_folder(target) / _CHOICE
    if not kept:
        path.unlink(missing_ok=True)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    engines = {
        each.engine: {"path": str(each.path), "fingerprint": each.fingerprint, "measured": dict(each.measured)}
        for each in kept
    }
    write_whole(path, lambda name: Path(name).write_text(json.dumps({"engines": engines}, indent=1), "utf-8"))
    return path
