"""The user's settings: a file and variables that set options for every command.

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

from edge_spec.errors import EdgeSpecError, ModelNotFound, SettingsError
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
"""Settings for all verbs: names of an argument or options, without leading hyphens."""

_PREFIX = "EDGE_SPEC_"


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The user's settings.

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
    """Read the file and the variables; ``common_mistakes`` and ``table_mistakes`` check the settings.

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


def common_mistakes(found: Configuration, command: click.Command | None = None) -> Iterator[SettingsError]:
    """Yield mistakes among the settings for all verbs.

    Args:
        command: whose options tell which values can be.
    """
    options = _by_name(command) if command is not None else {}
    for name, value in found.common.items():
        if name not in COMMON:
            yield SettingsError(
                f"{found.path}: {name!r} cannot be set for all verbs",
                hint=f"these can: {', '.join(COMMON)}; put others under the name of their verb, such as [run]",
            )
        elif name in options and getattr(options[name], "shared", True):
            source = found.sources.get(name, "")
            where = source if source.startswith(_PREFIX) else f"{found.path}: {name}"
            yield from _value_mistakes(options[name], value, where)


def table_mistakes(command: click.Command | None, verb: str, found: Configuration) -> Iterator[SettingsError]:
    """Yield mistakes among the settings of a verb.

    Args:
        command: the verb's; None if there is none of that name.
    """
    if command is None:
        yield SettingsError(f"{found.path}: there is no verb {verb!r} for [{verb}]", hint="see `edge-spec --help`")
    else:
        yield from _mistakes(command, found, found.verbs.get(verb, {}), verb)


def defaults_of(command: click.Command, verb: str, found: Configuration) -> dict[str, Any]:
    """Return click's default map of a verb: values by parameter, and those of its subcommands by name.

    Raises:
        SettingsError: the file has a mistake under this verb.
    """
    for mistake in (*common_mistakes(found, command), *table_mistakes(command, verb, found)):
        raise mistake
    return _defaults(command, found, found.verbs.get(verb, {}))


def _mistakes(command: click.Command, found: Configuration, own: Any, table: str) -> Iterator[SettingsError]:
    """Yield entries of a table that a command does not take.

    Args:
        own: what the table holds.
        table: its name in the file, such as ``drafter.make``.
    """
    if not isinstance(own, Mapping):
        yield SettingsError(f"{found.path}: {table} is {own!r} and must be a table", hint="see `edge-spec config`")
        return
    verbs = command.commands if isinstance(command, click.Group) else {}
    options = _by_name(command)
    for name, value in own.items():
        if name in verbs:
            yield from _mistakes(verbs[name], found, value, f"{table}.{name}")
        elif verbs or name.replace("_", "-") not in options:
            kind = "verbs" if verbs else "options"
            yield SettingsError(
                f"{found.path}: [{table}] has {name!r}, which is not one of its {kind}",
                hint=f"see `edge-spec {table.replace('.', ' ')} --help`",
            )
        else:
            yield from _value_mistakes(options[name.replace("_", "-")], value, f"{found.path}: [{table}] {name}")


def _value_mistakes(param: click.Parameter, value: Any, where: str) -> Iterator[SettingsError]:
    """Yield why a value is wrong, by the check of the command line.

    Args:
        where: the file and the name, or the variable.
    """
    problem = ""
    for each in value if isinstance(value, list) and getattr(param, "multiple", False) else [value]:
        problem = problem or _problem(param, each)
    if problem:
        yield SettingsError(f"{where} {problem}")


def _problem(param: click.Parameter, value: Any) -> str:
    """Return what is wrong with a value and the next step, as clauses; empty if it is right."""
    if isinstance(value, dict | list):
        return f"is {value!r} and must be a single value; correct it"
    wanted = _wanted(param)
    # TOML's truth values are numbers to Python, and its dates are texts to click.
    if not isinstance(value, {"true or false": str | bool, "a path": str}.get(wanted, str | int | float)) or (
        isinstance(value, bool) and wanted != "true or false"
    ):
        return f"is {_as_typed(value)} and must be {wanted}; correct it"
    typed = (str(value),) if getattr(param, "multiple", False) or param.nargs < 0 else str(value)
    try:
        param.process_value(click.Context(_NOTHING), typed)
    except click.UsageError as error:
        return f"is {_as_typed(value)}: {error.message.rstrip('.')}; correct it"
    except SettingsError as error:
        return f"{error.problem}; {error.hint or 'correct it'}"
    except ModelNotFound:
        # A missing model is reported when it is used: another may be typed, or this one downloaded.
        return ""
    except EdgeSpecError as error:
        return f"is {_as_typed(value)}: {error}"
    return ""


def _wanted(param: click.Parameter) -> str:
    """Return the wanted kind of value."""
    if getattr(param, "is_flag", False):
        return "true or false"
    if isinstance(param.type, click.types.IntParamType | click.types.FloatParamType):
        return "a number"
    return "a path" if isinstance(param.type, click.Path) else "text"


def _as_typed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)


_NOTHING = click.Command("")
"""Placeholder of the command while values are checked before any command runs."""


def _defaults(command: click.Command, found: Configuration, own: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(command, click.Group):
        return {name: _defaults(each, found, own.get(name, {})) for name, each in command.commands.items()}
    by_name = _by_name(command)
    # An option of the same name with another meaning keeps its own default.
    shared = {name for name, param in by_name.items() if getattr(param, "shared", True)}
    values = {name: value for name, value in found.common.items() if name in shared}
    values |= {name.replace("_", "-"): value for name, value in own.items()}
    return {str(by_name[name].name): (value,) if by_name[name].nargs < 0 else value for name, value in values.items()}


def _by_name(command: click.Command) -> dict[str, click.Parameter]:
    """Return the options of a verb, or of its subcommands, by their names in settings."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {name: param for param in command.params if param.name for name in _names(param)}
    return {name: param for each in below for name, param in _by_name(each).items()} | own


def _names(param: click.Parameter) -> list[str]:
    if isinstance(param, click.Argument):
        return ["model"] if param.name in ("model", "models") else []
    return [flag.removeprefix("--") for flag in param.opts if flag.startswith("--")]
