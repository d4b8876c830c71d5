"""Options that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from edge_spec.cli.progress import Bar
from edge_spec.cli.prompts import argument_text, file_or_text
from edge_spec.controller.engine_choice import ENGINES

__all__ = [
    "grammar_arguments",
    "grammar_options",
    "load_arguments",
    "model_options",
    "sampler_arguments",
    "sampler_options",
]

Command = TypeVar("Command", bound=Callable[..., Any])


class _Context(click.ParamType):  # type: ignore[type-arg]
    """A number of tokens, or the least one: the argument of ``load`` that it is, and its value."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        found = re.fullmatch(r" *(-?[0-9]{1,18}) *(\+?) *", str(value), re.ASCII)
        if found is None:
            said = f"{str(value)[:32]!r} is no number of tokens; write 4096, or 4096+ for at least as many"
            self.fail(said, param, ctx)
        return "min_n_ctx" if found[2] else "n_ctx", int(found[1])


_ENGINE = click.Choice(["auto", *ENGINES])
_PASSED = ("model", "draft", "intermediate", "engine", "draft_engine", "intermediate_engine", "draft_limit", "memory")
_SAMPLER = {
    "temperature": (float, "Divides the logits; 0 takes the best token. [default: 0.8]"),
    "top_k": (int, "Keep the k best tokens; 0 for all. [default: 40]"),
    "top_p": (float, "Keep the likeliest tokens up to this mass; 1 for all. [default: 0.95]"),
    "min_p": (float, "Keep tokens at least this likely relative to the best; 0 for all. [default: 0.05]"),
    "typical_p": (float, "Keep the most typical tokens up to this mass; 1 for all. [default: 1]"),
    "top_n_sigma": (float, "Keep logits within so many standard deviations of the best; 0 for all. [default: 0]"),
    "repeat_penalty": (float, "Divides the logits of recent tokens; 1 for none. [default: 1]"),
    "frequency_penalty": (float, "Subtracted from a recent token's logit per occurrence. [default: 0]"),
    "presence_penalty": (float, "Subtracted from a recent token's logit once. [default: 0]"),
    "penalty_window": (int, "How many tokens are recent; -1 for all. [default: 64]"),
    "dry_multiplier": (float, "Strength of DRY, which penalises going on with a repetition; 0 for none. [default: 0]"),
    "dry_base": (float, "By how much DRY grows per repeated token. [default: 1.75]"),
    "dry_allowed_length": (int, "Repetitions shorter than this are free. [default: 2]"),
    "dry_penalty_window": (int, "How many tokens DRY looks back; -1 for all. [default: 64]"),
    "xtc_probability": (float, "Chance of XTC, which excludes the top choices; 0 for none. [default: 0]"),
    "xtc_threshold": (float, "Tokens this likely are top choices. [default: 0.1]"),
    "mirostat": (int, "2 for mirostat v2 instead of top-k to XTC; 0 for none. [default: 0]"),
    "mirostat_tau": (float, "The surprise that mirostat aims at, in bits per token. [default: 5]"),
    "mirostat_eta": (float, "How fast mirostat adapts. [default: 0.1]"),
}


def model_options(command: Command) -> Command:
    """MODEL and how to run it."""
    for option in reversed(
        (
            click.argument("model", default="demo"),
            click.option("--draft", metavar="PATH", help="The drafter, of any kind; the demo family brings its own."),
            click.option("--intermediate", metavar="PATH", help="The intermediate model, for the hierarchy."),
            click.option("--middle", "intermediate", hidden=True),
            click.option("--engine", type=_ENGINE, help="What runs the models. [default: auto]"),
            click.option("--draft-engine", type=_ENGINE, help="What runs the drafter. [default: --engine]"),
            click.option(
                "--intermediate-engine", type=_ENGINE, help="What runs the intermediate model. [default: --engine]"
            ),
            click.option("--middle-engine", "intermediate_engine", type=_ENGINE, hidden=True),
            click.option("--draft-limit", type=int, metavar="N", help="Most tokens drafted per round."),
            click.option(
                "--ctx",
                type=_Context(),
                metavar="N[+]",
                help="Most tokens of prompt and reply together; N+ for at least so many, more where memory has room.",
            ),
            click.option("--threads", type=int, metavar="N", help="Threads; 0 for the number of cores. [default: 0]"),
            click.option("--threads-batch", type=int, metavar="N", help="Threads for many rows. [default: --threads]"),
            click.option("--kv", metavar="K/V", help="Types of cached keys and values. [default: q8_0/f16; onnx: f32]"),
            click.option("--no-repack", is_flag=True, help="Leave weights mapped from disk: less memory, slower."),
            click.option(
                "--memory", metavar="SIZE", help="All that may be held, such as 2GiB. [default: 80% of what is free]"
            ),
            click.option("-v", "--verbose", is_flag=True, help="Show llama.cpp's log."),
        )
    ):
        command = option(command)
    return command


def load_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``edge_spec.load`` from the values of ``model_options``, taken only where given."""
    arguments = {name: values[name] for name in _PASSED if values[name] is not None}
    arguments["verbose"] = values["verbose"]
    arguments["on_wait"] = lambda sentence: click.echo(f"edge-spec: {sentence} ...", err=True)
    arguments["on_progress"] = Bar()
    if values["ctx"] is not None:
        name, n_tokens = values["ctx"]
        arguments[name] = n_tokens
    for option, name in (("threads", "n_threads"), ("threads_batch", "n_threads_batch")):
        if values[option] is not None:
            arguments[name] = values[option]
    if values["kv"] is not None:
        keys, separator, cached = values["kv"].partition("/")
        arguments |= {"kv_k": keys, "kv_v": cached if separator else keys}
    if values["no_repack"]:
        arguments["repack"] = False
    return arguments


def sampler_options(*, temperature: bool = True) -> Callable[[Command], Command]:
    """The sampler's flags; without ``temperature`` for verbs that take several."""

    def decorate(command: Command) -> Command:
        for name, (kind, text) in reversed(_SAMPLER.items()):
            flags = ["--" + name.replace("_", "-"), *(["--temp"] if name == "temperature" else [])]
            if temperature or name != "temperature":
                command = click.option(*flags, name, type=kind, metavar="N" if kind is int else "X", help=text)(command)
        command = click.option(
            "--dry-breaker",
            "dry_breakers",
            multiple=True,
            metavar="TEXT",
            help="DRY does not look back beyond it. Repeatable. [default: line break, colon, quote, star]",
        )(command)
        return click.option(
            "--logit-bias", multiple=True, metavar="ID=X", help="Added to a token's logit; -inf forbids it. Repeatable."
        )(command)

    return decorate


def sampler_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``SamplerSettings`` from the values of ``sampler_options``, taken only where given."""
    arguments = {name: values[name] for name in _SAMPLER if values.get(name) is not None}
    if values["logit_bias"]:
        arguments["logit_bias"] = dict(map(_bias, values["logit_bias"]))
    if values["dry_breakers"]:
        arguments["dry_breakers"] = tuple(argument_text(text, "--dry-breaker") for text in values["dry_breakers"])
    return arguments


def grammar_options(command: Command) -> Command:
    """What a reply must look like."""
    for option in reversed(
        (
            click.option("--grammar", metavar="FILE|TEXT", help="Write only what this grammar in GBNF allows."),
            click.option("--json-schema", metavar="FILE|TEXT", help="Write JSON that is valid by this schema."),
        )
    ):
        command = option(command)
    return command


def grammar_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``TextModel.generate`` from the values of ``grammar_options``, taken only where given."""
    flags = {"grammar": "--grammar", "json_schema": "--json-schema"}
    return {name: file_or_text(values[name], flag) for name, flag in flags.items() if values[name] is not None}


def _bias(text: str) -> tuple[int, float]:
    token, separator, bias = text.partition("=")
    try:
        if separator:
            return int(token), float(bias)
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is not of the form ID=X, such as 17=-2.5", param_hint="--logit-bias")
