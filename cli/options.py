"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from edge_spec.engines import ENGINES

__all__ = ["load_arguments", "model_options", "sampler_arguments", "sampler_options"]

Command = TypeVar("Command", bound=Callable[..., Any])

_ENGINE = click.Choice(["auto", *ENGINES])
_PASSED = ("model", "draft", "middle", "engine", "draft_engine", "middle_engine", "draft_limit", "memory")
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
}


def model_options(command: Command) -> Command:
    """MODEL and how to run it."""
    for option in reversed((
        click.argument("model", default="demo"),
        click.option("--draft", metavar="PATH", help="The drafter's GGUF; the demo family brings its own."),
        click.option("--middle", metavar="PATH", help="The intermediate model's GGUF, for the hierarchy."),
        click.option("--engine", type=_ENGINE, help="What runs the models. [default: auto]"),
        click.option("--draft-engine", type=_ENGINE, help="What runs the drafter. [default: --engine]"),
        click.option("--middle-engine", type=_ENGINE, help="What runs the intermediate model. [default: --engine]"),
        click.option("--draft-limit", type=int, metavar="N", help="Most tokens drafted per round."),
        click.option("--ctx", type=int, metavar="N", help="Most tokens of prompt and reply together."),
        click.option("--threads", type=int, metavar="N", help="Threads; 0 for the number of cores. [default: 0]"),
        click.option("--threads-batch", type=int, metavar="N", help="Threads for many rows. [default: --threads]"),
        click.option("--kv", metavar="K/V", help="Types of the cached keys and values. [default: q8_0/f16]"),
        click.option("--no-repack", is_flag=True, help="Leave weights mapped from disk: less memory, slower."),
        click.option(
            "--memory", metavar="SIZE", help="All that may be held, such as 2GiB. [default: 80% of what is free]"
        ),
        click.option("-v", "--verbose", is_flag=True, help="Show llama.cpp's log."),
    )):  # fmt: skip
        command = option(command)
    return command


def load_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``edge_spec.load`` from the values of ``model_options``, taken only where given."""
    arguments = {name: values[name] for name in _PASSED if values[name] is not None}
    arguments["verbose"] = values["verbose"]
    arguments["on_wait"] = lambda sentence: click.echo(f"edge-spec: {sentence} ...", err=True)
    for option, name in (("ctx", "n_ctx"), ("threads", "n_threads"), ("threads_batch", "n_threads_batch")):
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
        return click.option(
            "--logit-bias", multiple=True, metavar="ID=X", help="Added to a token's logit; -inf forbids it. Repeatable."
        )(command)

    return decorate


def sampler_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``SamplerSettings`` from the values of ``sampler_options``, taken only where given."""
    arguments = {name: values[name] for name in _SAMPLER if values.get(name) is not None}
    if values["logit_bias"]:
        arguments["logit_bias"] = dict(map(_bias, values["logit_bias"]))
    return arguments


def _bias(text: str) -> tuple[int, float]:
    token, separator, bias = text.partition("=")
    try:
        if separator:
            return int(token), float(bias)
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is not of the form ID=X, such as 17=-2.5", param_hint="--logit-bias")
