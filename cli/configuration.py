"""The user's settings: one file, and variables, in place of options that would be typed every time.

``config.toml`` in edge-spec's folder for configuration, or the file that ``EDGE_SPEC_CONFIG`` names::

    memory = "2GiB"            # for every verb that has such an option
    model = "qwen3-4b"

    [chat]                     # for one verb
    system = "Answer briefly."

A variable such as ``EDGE_SPEC_MEMORY`` comes before the file, and what is typed before both.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edge_spec.errors import SettingsError
from edge_spec.models.user_folder import configuration_path

__all__ = ["COMMON", "Configuration", "defaults_of", "read_configuration"]

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
    """The file and the variables.

    Raises:
        SettingsError: the file is not TOML, or has a setting that may not stand there.
    """
    path = configuration_path(environment)
    content: dict[str, Any] = {}
    if path.is_file() or environment.get("EDGE_SPEC_CONFIG"):
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            hint = "EDGE_SPEC_CONFIG names it" if environment.get("EDGE_SPEC_CONFIG") else "check its permissions"
            raise SettingsError(f"{path} cannot be read: {error.strerror or error}", hint=hint) from None
        except ValueError as error:
            problem = "is not UTF-8 text" if isinstance(error, UnicodeError) else f"is not TOML: {error}"
            raise SettingsError(f"{path} {problem}", hint="correct it, or move it away") from None
    verbs = {name: value for name, value in content.items() if isinstance(value, dict)}
    common = {name.replace("_", "-"): value for name, value in content.items() if not isinstance(value, dict)}
    unknown = sorted(common.keys() - set(COMMON))
    if unknown:
        raise SettingsError(
            f"{path}: {unknown[0]!r} cannot be set for all verbs",
            hint=f"these can: {', '.join(COMMON)}; put others under the name of their verb, such as [run]",
        )
    sources = dict.fromkeys(common, path.name)
    for name in COMMON:
        variable = _PREFIX + name.upper().replace("-", "_")
        if environment.get(variable):
            common[name], sources[name] = environment[variable], variable
    return Configuration(path=path, common=common, verbs=verbs, sources=sources)


def defaults_of(command: click.Command, verb: str, found: Configuration) -> dict[str, Any]:
    """What click calls a default map for a verb: values by parameter, and of its own verbs by name.

    Raises:
        SettingsError: the file has something under this verb that it does not take.
    """
    return _defaults(command, found, found.verbs.get(verb, {}), f"[{verb}]")


def _defaults(command: click.Command, found: Configuration, own: Mapping[str, Any], table: str) -> dict[str, Any]:
    if not isinstance(own, Mapping):
        raise SettingsError(
            f"{found.path}: {table[1:-1]} is {own!r} and must be a table", hint="see `edge-spec config`"
        )
    if isinstance(command, click.Group):
        return {
            name: _defaults(each, found, own.get(name, {}), f"{table[:-1]}.{name}]")
            for name, each in command.commands.items()
        }
    by_name = {name: param for param in command.params if param.name for name in _names(param)}
    unknown = sorted(name for name in own if name.replace("_", "-") not in by_name)
    if unknown:
        raise SettingsError(
            f"{found.path}: {table} has {unknown[0]!r}, which is not one of its options",
            hint=f"see `edge-spec {table[1:-1].replace('.', ' ')} --help`",
        )
    # An option of the same name that means something else here keeps its own default.
    shared = {name for name, param in by_name.items() if getattr(param, "shared", True)}
    values = {name: value for name, value in found.common.items() if name in shared}
    values |= {name.replace("_", "-"): value for name, value in own.items()}
    for name, value in values.items():
        if isinstance(value, dict) or (isinstance(value, list) and not getattr(by_name[name], "multiple", False)):
            raise SettingsError(f"{found.path}: {name} is {value!r} and must be a single value", hint="correct it")
    return {str(by_name[name].name): (value,) if by_name[name].nargs < 0 else value for name, value in values.items()}


def _names(param: click.Parameter) -> list[str]:
    if isinstance(param, click.Argument):
        return ["model"] if param.name in ("model", "models") else []
    return [flag.removeprefix("--") for flag in param.opts if flag.startswith("--")]
