"""Options that most verbs share: the model and how to run it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from edge_spec.cli.folders import ModelName, folder_options, model_argument
from edge_spec.cli.help import Count, keyword_option, option
from edge_spec.cli.output import Bar
from edge_spec.cli.printing import echo
from edge_spec.cli.wording import in_options
from edge_spec.controller.options import DEFAULT_N_CTX, LOAD_OPTIONS, LoadOptions
from edge_spec.engines.registry import AUTO, engine_names, fallback, titles_with
from edge_spec.engines.registry import engine as engine_of
from edge_spec.engines.settings import ModelSettings
from edge_spec.models import resolve, resolve_family
from edge_spec.speculation.modes import MODES

__all__ = [
    "context_option",
    "load_arguments",
    "max_tokens_option",
    "memory_option",
    "model_options",
    "models_options",
    "running_option",
    "speculation_option",
    "threads_option",
]

Command = TypeVar("Command", bound=Callable[..., Any])

_MODELS, _RUNNING = "Models", "Engine and memory"


class _Context(click.ParamType):  # type: ignore[type-arg]
    """Type of ``--ctx``: ``N`` or ``N+``, as an argument of ``load`` and its value."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        found = re.fullmatch(r" *(-?[0-9]{1,18}) *(\+?) *", str(value), re.ASCII)
        if found is None:
            said = f"{str(value)[:32]!r} is not a number of tokens; write 4096, or 4096+ for at least as many"
            self.fail(said, param, ctx)
        return "min_n_ctx" if found[2] else "n_ctx", int(found[1])


def running_option(*flags: str, **more: Any) -> Callable[[Command], Command]:
    """Return an option of how models are run."""
    return option(_RUNNING, *flags, **more)


def context_option(text: str) -> Callable[[Command], Command]:
    """``--ctx``: as the argument of ``load`` that it sets, and its value."""
    return running_option(
        "--ctx", type=_Context(), metavar="N[+]", help=text, check=lambda value: LoadOptions.of(None, dict([value]))
    )


def memory_option(**more: Any) -> Callable[[Command], Command]:
    """``--memory``."""
    return _option("memory", metavar="SIZE", **more)


def threads_option() -> Callable[[Command], Command]:
    """``--threads``."""
    return _option("n_threads")


def _option(name: str, **more: Any) -> Callable[[Command], Command]:
    """Return the option that sets an argument of ``load``."""
    section = _MODELS if name in ("draft", "intermediate", "draft_limit", "speculation") else _RUNNING
    return keyword_option(section, LOAD_OPTIONS[name], check=lambda value: LoadOptions.of(None, {name: value}), **more)


def model_options(command: Command) -> Command:
    """MODEL and how to run it."""
    return _model_options(command, model_argument())


def models_options(command: Command) -> Command:
    """Any number of MODELs, as ``models``, and how to run them."""
    return _model_options(command, model_argument("[MODEL]...", several=True))


def _model_options(command: Command, argument: Callable[[Any], Any]) -> Command:
    named, engine = ModelName(), click.Choice([AUTO, *sorted(engine_names())])
    those = titles_with("n_threads_batch", 2)
    batch = f"Threads of {those} for reading prompts and verifying drafts."
    mapped = f"Leave {titles_with('repack', False)}'s weights mapped from disk: less memory, slower."
    tokens = f"what the model was trained for, up to {DEFAULT_N_CTX}"
    auto = ", ".join(f"{each.auto_kv} on {each.title}" for each in map(engine_of, sorted(engine_names())))
    types = f"Types of cached keys and values, or one for both; auto is {auto}."
    ctx = (
        f"Maximum tokens of prompt and reply together; N+ for at least N, more where memory allows. [default: {tokens}]"
    )
    forms: dict[str, dict[str, Any]] = {
        "draft": {"type": named, "metavar": "PATH"},
        "intermediate": {"type": named, "metavar": "PATH"},
        "engine": {"type": engine, "default": AUTO, "metavar": None},
        "draft_engine": {"type": engine, "shown": "--engine", "metavar": None},
        "intermediate_engine": {"type": engine, "shown": "--engine", "metavar": None},
        "n_threads_batch": {"shown": "--threads", "help": batch},
        "verbose": {"help": f"Show {fallback().title}'s log."},
    }
    own: dict[str, Callable[[Any], Any]] = {
        "n_ctx": context_option(ctx),
        "memory": memory_option(),
        "kv_k": option(
            _RUNNING,
            "--kv",
            metavar="K/V",
            shown=ModelSettings.kv_k,
            help=types,
            check=lambda value: LoadOptions.of(None, _cached_types(value)),
        ),
        "repack": option(_RUNNING, "--no-repack", is_flag=True, help=mapped),
    }
    """Options that are typed in another form than the argument."""
    without = ("speculation", "min_n_ctx", "kv_v", "cache_dir")
    options: list[Callable[[Any], Any]] = [argument]
    for name, each in LOAD_OPTIONS.items():
        if each.flag is not None and name not in without:
            options.append(own.get(name) or _option(name, **forms.get(name, {})))
    for decorate in reversed(options):
        command = decorate(command)
    return folder_options(command)


def _cached_types(kv: str) -> dict[str, str]:
    keys, separator, cached = kv.partition("/")
    return {"kv_k": keys, "kv_v": cached if separator else keys}


def load_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``edge_spec.load`` from the values of the options here, taken only where given.

    Values that are wrong without opening a file are refused here, before a prompt is read.

    Raises:
        SettingsError: a value out of its range. ModelNotFound, NotAModel: there is no such model.
    """
    arguments = {name: values[name] for name in LOAD_OPTIONS if values.get(name) is not None}
    arguments["on_wait"] = lambda sentence: echo(f"edge-spec: {in_options(sentence)} ...", err=True)
    arguments["on_progress"] = Bar()
    if values["ctx"] is not None:
        name, n_tokens = values["ctx"]
        arguments[name] = n_tokens
    if values["kv"] is not None:
        arguments |= _cached_types(values["kv"])
    if values["no_repack"]:
        arguments["repack"] = False
    model = values["model"]
    LoadOptions.of(model, arguments)
    resolve_family(model)
    for role in ("draft", "intermediate"):
        if role in arguments:
            resolve(arguments[role])
    return {"model": model, **arguments}


def speculation_option(command: Command) -> Command:
    """Return the option ``--speculation``."""
    text = "How to draft; affects speed, not the text (see `identity` in the README)."
    choice = click.Choice([AUTO, *MODES])
    return _option("speculation", type=choice, default=AUTO, metavar=None, help=text)(command)


def max_tokens_option(default: int | None, text: str) -> Callable[[Command], Command]:
    """Return the option ``--max-tokens``; verbs that measure have a default and ignore the setting for all verbs."""
    shared = default is None
    return option("Replies", "-n", "--max-tokens", type=Count(), default=default, metavar="N", shared=shared, help=text)
