"""Options of the sampler, of seeds, and of what a reply must look like."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click

from edge_spec.cli.help import option
from edge_spec.cli.prompts import argument_text, file_or_text
from edge_spec.sampling import SamplerSettings
from edge_spec.sampling.gbnf import gbnf_to_lark
from edge_spec.sampling.guidance import check_grammar
from edge_spec.sampling.json_schema import schema_to_lark

__all__ = ["grammar_arguments", "grammar_options", "sampler_arguments", "sampler_options"]

Command = TypeVar("Command", bound=Callable[..., Any])

_SECTION = "Sampling"
_ALIASES = {"temperature": ["--temp"]}


def sampler_options(*, temperature: bool = True) -> Callable[[Command], Command]:
    """The sampler's options; without ``temperature`` for verbs that take several."""
    defaults = SamplerSettings()
    texts = {each.name: each.metadata["help"] for each in fields(SamplerSettings) if "help" in each.metadata}
    breaker = "DRY does not look back beyond it. Repeatable."
    bias = "Added to a token's logit; -inf forbids it. Repeatable."

    def decorate(command: Command) -> Command:
        breakers = json.dumps(list(defaults.dry_breakers))[1:-1]
        options = [
            option(
                _SECTION,
                "--" + name.replace("_", "-"),
                *_ALIASES.get(name, []),
                name,
                type=type(getattr(defaults, name)),
                metavar="N" if isinstance(getattr(defaults, name), int) else "X",
                shown=getattr(defaults, name),
                help=help_text,
            )
            for name, help_text in texts.items()
            if temperature or name != "temperature"
        ]
        options += [
            option(
                _SECTION, "--dry-breaker", "dry_breakers", multiple=True, metavar="TEXT", shown=breakers, help=breaker
            ),
            option(_SECTION, "--logit-bias", multiple=True, metavar="ID=X", help=bias),
        ]
        for each in reversed(options):
            command = each(command)
        return command

    return decorate


def sampler_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``SamplerSettings`` from the values of ``sampler_options``, taken only where given.

    Raises:
        SettingsError: a value is out of range; better now than after a model has been loaded.
    """
    known = {field.name for field in fields(SamplerSettings)} - {"logit_bias", "dry_breakers"}
    arguments = {name: values[name] for name in known & values.keys() if values[name] is not None}
    if values["logit_bias"]:
        arguments["logit_bias"] = dict(map(_bias, values["logit_bias"]))
    if values["dry_breakers"]:
        arguments["dry_breakers"] = tuple(argument_text(text, "--dry-breaker") for text in values["dry_breakers"])
    SamplerSettings(**arguments)
    return arguments


def grammar_options(command: Command) -> Command:
    """What a reply must look like."""
    for name, text in (
        ("--json-schema", "Write JSON that is valid by this schema."),
        ("--grammar", "Write only what this grammar in GBNF allows."),
    ):
        command = option("Structured output", name, metavar="FILE|TEXT", help=text)(command)
    return command


def grammar_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``TextModel.generate`` from the values of ``grammar_options``, taken only where given.

    Raises:
        SettingsError, PromptError: one is not valid, or its file cannot be read; better now than after a model has
            been loaded.
    """
    flags = {"grammar": "--grammar", "json_schema": "--json-schema"}
    given = {name: flag for name, flag in flags.items() if values[name] is not None}
    if len(given) > 1:
        raise click.UsageError("give --grammar or --json-schema, not both")
    found = {name: file_or_text(values[name], flag) for name, flag in given.items()}
    if "grammar" in found:
        check_grammar(gbnf_to_lark(found["grammar"]))
    if "json_schema" in found:
        check_grammar(schema_to_lark(found["json_schema"]))
    return found


def _bias(text: str) -> tuple[int, float]:
    token, separator, bias = text.partition("=")
    try:
        if separator:
            return int(token), float(bias)
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is not of the form ID=X, such as 17=-2.5", param_hint="--logit-bias")
