"""The engines there are. Importing this loads none of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from edge_spec.errors import Arguments, EdgeSpecError, Sentence, SettingsError, UnsupportedModel
from edge_spec.options import refuse_unknown

if TYPE_CHECKING:
    from edge_spec.engines.base import Engine, ModelSettings
    from edge_spec.models import ModelFile

__all__ = [
    "AUTO",
    "able",
    "engine",
    "engine_names",
    "engines",
    "fallback",
    "require_installed",
    "settings_of",
    "titles_with",
    "usable",
    "use",
    "why_none",
]

AUTO = "auto"
"""Stands for the first engine that has no reason against a file and its settings."""

_ENGINES = {
    "onnx": "edge_spec.engines.onnx.engine:OnnxEngine",
    "llama": "edge_spec.engines.llama.engine:LlamaEngine",
}
"""Where each engine is defined, by name, in the order in which ``auto`` asks them.

A new engine is a folder and a line here.
"""


def engine_names() -> tuple[str, ...]:
    """Return names of all engines, in the order in which ``auto`` asks them."""
    return tuple(_ENGINES)


@cache
def engine(name: str) -> Engine:
    """Return the engine of a name; its library is not loaded yet.

    Raises:
        SettingsError: there is none of that name.
    """
    if name not in _ENGINES:
        raise SettingsError(
            f"there is no engine {name!r}", hint=f"choose one of {', '.join((AUTO, *sorted(_ENGINES)))}"
        )
    module, _, kind = _ENGINES[name].partition(":")
    return cast("Engine", getattr(import_module(module), kind)())


def engines() -> tuple[Engine, ...]:
    """Return all engines, in the order in which ``auto`` asks them."""
    return tuple(map(engine, _ENGINES))


def fallback(among: Iterable[Engine] | None = None) -> Engine:
    """Return the engine that takes what no other takes first.

    If it is not ``among`` those in question, the first of them.
    """
    return min(engines() if among is None else among, key=lambda each: not each.is_fallback)


def usable(among: Iterable[Engine]) -> list[Engine]:
    """Return those of some engines whose libraries are installed."""
    return [each for each in among if each.why_not_installed() is None]


def able(file: ModelFile, *, installed: bool = True) -> list[Engine]:
    """Return the engines that may run a file, in the order in which ``auto`` asks them.

    Args:
        installed: those that are, or those that are not.
    """
    there = usable(engines())
    return [each for each in engines() if (each in there) == installed and each.why_not(file) is None]


def why_none(file: ModelFile) -> EdgeSpecError | None:
    """Return the error for a file that no engine runs which is installed; None if one may."""
    if able(file):
        return None
    reasons = [f"{each.title} cannot run it: {why}" for each in engines() if (why := each.why_not(file)) is not None]
    lacking = able(file, installed=False)
    reasons += [f"{each.title} might, but {each.why_not_installed()}" for each in lacking]
    hint = f"run: {lacking[0].how_to_install()}" if lacking else "choose another model"
    return UnsupportedModel(f"{file.path.name}: {'; '.join(reasons)}", hint=hint)


def require_installed(asked: Engine) -> None:
    """Refuse an engine that was asked for by name and is not installed.

    Raises:
        EdgeSpecError: its library cannot be used.
    """
    why = asked.why_not_installed()
    if why is None:
        return
    known = sum(len(each.architectures) for each in engines() if each is not asked)
    without = (
        f"; without it edge-spec runs GGUFs of {known} architectures (`edge-spec doctor` lists them)" if known else ""
    )
    raise EdgeSpecError(f"{why}{without}", hint=f"run: {asked.how_to_install()}")


def use(name: str) -> Sentence:
    """Return how to get to another engine, for hints: how it is asked for, or how it is installed."""
    found = engine(name)
    if found.why_not_installed() is None:
        return Sentence("use {instead}", instead=Arguments(engine=name))
    return Sentence("run {command}", command=found.how_to_install())


def titles_with(name: str, value: Any) -> str:
    """Return the engines on which a setting with this value has an effect, as in sentences."""
    given = settings_of(1, {name: value})
    return " and ".join(each.title for each in engines() if name not in each.unused(given))


def settings_of(n_ctx: int, given: Mapping[str, Any]) -> ModelSettings:
    """Settings of values by name, those of single engines among them.

    Raises:
        SettingsError: a setting that no engine has, or a value out of its range.
    """
    from edge_spec.engines.settings import ModelSettings

    common = {field.name for field in fields(ModelSettings)} - {"n_ctx", "held_experts", "extras"}
    extras = frozenset[str]().union(*(each.extras for each in engines()))
    refuse_unknown(given, {"n_ctx", *common, *extras})
    values = {name: value for name, value in given.items() if name in common}
    return ModelSettings(n_ctx=n_ctx, **values, extras={name: given[name] for name in given if name in extras})
