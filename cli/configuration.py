"""The user's settings: one file, and variables, in place of options that would be typed every time.

``config.toml`` in edge-spec's folder for configuration, or the file that ``EDGE_SPEC_CONFIG`` names::

    memory = "2GiB"            # for every verb that has such an option
    model = "qwen3-4b"

    [chat]                     # for one verb
    system = "Answer briefly."

A variable such as ``EDGE_SPEC_MEMORY`` comes before the file, and what is typed before both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edge_spec.errors import SettingsError
from edge_spec.library.user_folder import configuration_path, read_settings

__all__ = ["COMMON", "Configuration", "common_mistakes", "defaults_of", "read_configuration", "table_mistakes"]

COMMON = (
    "model",
    "model-dir",
    "cache-dir",
    "memory",
    "ctx",
    "engine",
    "speculation",
    "threads",
    "temperature",
    "max-tokens",
)
"""What may stand for all verbs: an argument or options, as they are typed but for the hyphens before them."""

_FOLDERS = ("model-dir", "cache-dir")

_PREFIX = "EDGE_SPEC_"


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What the user has set.

    Attributes:
        path: of the file, whether or not it is there.
        common: for all verbs, by name.
        verbs: for single ones, by verb and name.
        sources: where each of ``common`` comes from: the file's name, or a variable's.
    """

    path: Path
    common: Mapping[str, Any]
    verbs: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, str]


def read_configuration(environment: Mapping[str, str]) -> Configuration:
    """Read the file and the variables; ``common_mistakes`` and ``table_mistakes`` say what may not stand there.

    Raises:
        SettingsError: the file cannot be read, or is not TOML.
    """
    path, content = configuration_path(environment), read_settings(environment)
    verbs = {name: value for name, value in content.items() if isinstance(value, dict)}
    common = {name.replace("_", "-"): value for name, value in content.items() if not isinstance(value, dict)}
    sources = dict.fromkeys(common, path.name)
    for name in COMMON:
        variable = _PREFIX + name.upper().replace("-", "_")
        if environment.get(variable):
            common[name], sources[name] = environment[variable], variable
    return Configuration(path=path, common=common, verbs=verbs, sources=sources)


def common_mistakes(found: Configuration) -> Iterator[SettingsError]:
    """Tell what cannot be set for all verbs."""
    for name, value in found.common.items():
        if name not in COMMON:
            yield SettingsError(
                f"{found.path}: {name!r} cannot be set for all verbs",
                hint=f"these can: {', '.join(COMMON)}; put others under the name of their verb, such as [run]",
            )
        elif isinstance(value, list):
            yield _not_single(found, name, value)
        elif name in _FOLDERS and not isinstance(value, str):
            yield SettingsError(
                f"{found.path}: {name} is {value!r} and must be the path of a folder", hint="correct it"
            )


def table_mistakes(command: click.Command | None, verb: str, found: Configuration) -> Iterator[SettingsError]:
    """Tell what stands under a verb that it does not take.

    Args:
        command: the verb's; None if there is none of that name.
    """
    if command is None:
        yield SettingsError(f"{found.path}: there is no verb {verb!r} for [{verb}]", hint="see `edge-spec --help`")
    else:
        yield from _mistakes(command, found, found.verbs.get(verb, {}), verb)


def defaults_of(command: click.Command, verb: str, found: Configuration) -> dict[str, Any]:
    """Return what click calls a default map for a verb: values by parameter, and of its own verbs by name.

    Raises:
        SettingsError: the file has something under this verb that it does not take.
    """
    for mistake in table_mistakes(command, verb, found):
        raise mistake
    return _defaults(command, found, found.verbs.get(verb, {}))


def _mistakes(command: click.Command, found: Configuration, own: Any, table: str) -> Iterator[SettingsError]:
    """Tell what a table has that a command does not take.

    Args:
        own: what the table holds.
        table: its name in the file, such as ``drafter.make``.
    """
    if not isinstance(own, Mapping):
        yield SettingsError(f"{found.path}: {table} is {own!r} and must be a table", hint="see `edge-spec config`")
        return
    verbs = command.commands if isinstance(command, click.Group) else {}
    options = {name: param for param in command.params if param.name for name in _names(param)}
    for name, value in own.items():
        if name in verbs:
            yield from _mistakes(verbs[name], found, value, f"{table}.{name}")
        elif verbs or name.replace("_", "-") not in options:
            kind = "verbs" if verbs else "options"
            yield SettingsError(
                f"{found.path}: [{table}] has {name!r}, which is not one of its {kind}",
                hint=f"see `edge-spec {table.replace('.', ' ')} --help`",
            )
        elif isinstance(value, dict) or (
            isinstance(value, list) and not getattr(options[name.replace("_", "-")], "multiple", False)
        ):
            yield _not_single(found, name, value)


def _not_single(found: Configuration, name: str, value: object) -> SettingsError:
    return SettingsError(f"{found.path}: {name} is {value!r} and must be a single value", hint="correct it")


def _defaults(command: click.Command, found: Configuration, own: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(command, click.Group):
        return {name: _defaults(each, found, own.get(name, {})) for name, each in command.commands.items()}
    by_name = {name: param for param in command.params if param.name for name in _names(param)}
    # An option of the same name that means something else here keeps its own default.
    shared = {name for name, param in by_name.items() if getattr(param, "shared", True)}
    values = {name: value for name, value in found.common.items() if name in shared}
    values |= {name.replace("_", "-"): value for name, value in own.items()}
    return {str(by_name[name].name): (value,) if by_name[name].nargs < 0 else value for name, value in values.items()}


def _names(param: click.Parameter) -> list[str]:
    if isinstance(param, click.Argument):
        return ["model"] if param.name in ("model", "models") else []
    return [flag.removeprefix("--") for flag in param.opts if flag.startswith("--")]
