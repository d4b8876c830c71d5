"""Options in sections of the help, with the defaults of the arguments that they set."""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from edge_spec.cli.printing import echo
from edge_spec.cli.wording import option_of
from edge_spec.errors import SettingsError
from edge_spec.options import Option as Keyword

__all__ = ["Count", "Verb", "default_of", "keyword_option", "list_verbs", "option"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_OTHER = "Other"


Check = Callable[[Any], object]
"""Raises a ``SettingsError`` for a wrong value."""


class Option(click.Option):
    """An option.

    Attributes:
        section: of the help.
        shared: whether a setting for all verbs means it too.
        check: what is asked of its value, wherever that comes from: before anything is done, files are opened, or
            other options are looked at.
    """

    def __init__(
        self,
        *args: Any,
        section: str = _OTHER,
        shared: bool = True,
        check: Check = lambda value: None,
        **more: Any,
    ) -> None:
        super().__init__(*args, callback=_checked, **more)
        self.section, self.shared, self.check = section, shared, check


def _checked(context: click.Context, option: click.Parameter, value: Any) -> Any:
    assert isinstance(option, Option)
    if value is not None and value != () and not context.resilient_parsing:
        option.check(value)
    return value


class Verb(click.Command):
    """A command whose help lists its options section by section."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; an argument that is written as an option is named."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-")
            for parameter in self.get_params(ctx):
                if isinstance(parameter, click.Argument) and parameter.name == name:
                    written = f"{ctx.command_path} {parameter.make_metavar(ctx).strip('[]')}"
                    raise click.UsageError(f"{error.option_name} is not an option; write {written}", ctx) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SettingsError as error:
            flag = option_of(error.argument)
            names = [each.name for each in self.params if flag in each.opts and each.name]
            if names and ctx.get_parameter_source(names[0]) == ParameterSource.DEFAULT_MAP:
                # The value was not typed in this command.
                error.hint = "; ".join(
                    filter(None, (error.hint, "it comes from your settings: see 'edge-spec config'"))
                )
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "section", _OTHER), []).append(record)
        for section, records in sorted(sections.items(), key=lambda item: item[0] == _OTHER):
            with formatter.section(section):
                formatter.write_dl(records)


def list_verbs(context: click.Context) -> None:
    """Show the help of a verb with subcommands if none is named."""
    if context.invoked_subcommand is None:
        echo(context.get_help())


class Count(click.types.IntParamType):
    """A whole number of at least 1.

    Args:
        otherwise: advice for values below 1.
    """

    def __init__(self, otherwise: str = "") -> None:
        self._otherwise = otherwise

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(super().convert(value, param, ctx))
        if number < 1:
            self.fail(": ".join(filter(None, (f"{number} is less than 1", self._otherwise))), param, ctx)
        return number


def option(
    section: str, *flags: str, help: str = "", shown: Any = None, **more: Any
) -> Callable[[Decorated], Decorated]:
    """``click.option`` in a section of the help, which ends with the default.

    Args:
        shown: a default that is not the option's own but that of what it sets.
    """
    default = more.get("default") if shown is None else shown
    if default is not None:
        help = f"{help} [default: {f'{default:g}' if isinstance(default, float) else default}]"
    return click.option(*flags, cls=Option, section=section, help=help, **more)


def keyword_option(section: str, each: Keyword, **more: Any) -> Callable[[Decorated], Decorated]:
    """Return the option for a keyword argument, see ``edge_spec.options``.

    Args:
        more: what is otherwise than its description says, see ``option``.
    """
    # The short name comes first, and messages name the one with two hyphens that comes before others.
    flags = sorted(filter(None, (each.flag, each.short)), key=lambda flag: flag.startswith("--"))
    if each.kind is bool:
        return option(section, *flags, each.name, **{"is_flag": True, "help": each.brief, **more})
    shown: Any = each.shown or each.default
    if each.is_repeatable:
        shown = each.shown or json.dumps(each.default)[1:-1] or None
    described: dict[str, Any] = {
        "type": each.kind if each.kind in (int, float) else str,
        "metavar": {int: "N", float: "X"}.get(each.kind, "TEXT"),
        "multiple": each.is_repeatable,
        "shown": shown,
        "help": each.brief + (" Repeatable." if each.is_repeatable else ""),
    }
    return option(section, *flags, each.name, **{**described, **more})


def default_of(function: Callable[..., Any], name: str) -> Any:
    """Return the default of an argument."""
    found = signature(function).parameters[name].default
    assert found is not Parameter.empty
    return found
