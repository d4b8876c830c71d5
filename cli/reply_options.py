"""Options of replies on the command line: sampler, length and end, grammars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from edge_spec.cli.help import Count, keyword_option
from edge_spec.cli.prompts import argument_text, file_or_text
from edge_spec.generation.options import REPLY_OPTIONS, ReplyOptions
from edge_spec.options import Option
from edge_spec.sampling import SAMPLER_OPTIONS
from edge_spec.sampling.gbnf import gbnf_to_lark
from edge_spec.sampling.json_schema import schema_to_lark
from edge_spec.sampling.lark import Lark

__all__ = ["reply_arguments", "reply_options", "sampler_options"]

Command = TypeVar("Command", bound=Callable[..., Any])

_SECTIONS = {
    "raw": "Prompt",
    "grammar": "Structured output",
    "json_schema": "Structured output",
    **dict.fromkeys(SAMPLER_OPTIONS, "Sampling (settings recommended for a model replace these defaults)"),
}
"""The section of the other options."""

_FILE = "FILE|TEXT"
_FORMS: dict[str, dict[str, Any]] = {
    "max_tokens": {"type": Count("leave it out for as many as fit the context")},
    "logit_bias": {"metavar": "ID=X"},
    "grammar": {"metavar": _FILE},
    "json_schema": {"metavar": _FILE},
}
"""Types of options that are not a number or a text."""


def reply_options(*without: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of replies, without some and without the sampler's."""
    own = [each for name, each in REPLY_OPTIONS.items() if name not in (*SAMPLER_OPTIONS, *without)]
    return lambda command: _with_options(own, command)


def sampler_options(*without: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the sampler's options, without some."""
    own = [each for name, each in SAMPLER_OPTIONS.items() if name not in without]
    return lambda command: _with_options(own, command)


def _with_options(options: Iterable[Option], command: Command) -> Command:
    for each in reversed([each for each in options if each.flag is not None]):
        section, forms = _SECTIONS.get(each.name, "Replies"), _FORMS.get(each.name, {})
        command = keyword_option(section, each, check=_check_of(each), **forms)(command)
    return command


def _check_of(each: Option) -> Callable[[Any], object]:
    return lambda value: reply_arguments({each.name: value}, {each.name: each})


def reply_arguments(values: Mapping[str, Any], options: Mapping[str, Option] = REPLY_OPTIONS) -> dict[str, Any]:
    """Return arguments of ``TextModel.generate`` from the values of options, taken only where given.

    Args:
        options: those that are meant.

    Raises:
        SettingsError, PromptError: one is not valid, or its file cannot be read; better now than after a model has
            been loaded.
    """
    given = {name: value for name in options if (value := values.get(name)) is not None and value != ()}
    if {"grammar", "json_schema"} <= given.keys():
        raise click.UsageError("give --grammar or --json-schema, not both")
    arguments = {name: _read(options[name], value) for name, value in given.items()}
    ReplyOptions.of(arguments)
    if "grammar" in arguments:
        _check_grammar(gbnf_to_lark(arguments["grammar"]))
    if "json_schema" in arguments:
        _check_grammar(schema_to_lark(arguments["json_schema"]))
    return arguments


def _check_grammar(grammar: Lark) -> None:
    # Import only for grammars: the library takes 5 MiB.
    from edge_spec.sampling.guidance import check_grammar

    check_grammar(grammar)


def _read(each: Option, value: Any) -> Any:
    """Return the argument for the value of an option."""
    flag = str(each.flag)
    if each.name in ("grammar", "json_schema"):
        return file_or_text(value, flag)
    if each.name == "logit_bias":
        return dict(_bias(pair, flag) for pair in value)
    return tuple(argument_text(text, flag) for text in value) if each.is_repeatable else value


def _bias(text: str, flag: str) -> tuple[int, float]:
    token, separator, bias = text.partition("=")
    try:
        if separator:
            return int(token), float(bias)
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is not of the form ID=X, such as 17=-2.5", param_hint=flag)
