"""The model and how to run it: options that most verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from edge_spec.arguments import require_whole
from edge_spec.cli.folders import ModelName, folder_options, model_argument
from edge_spec.cli.help import Count, default_of, option
from edge_spec.cli.output import Bar
from edge_spec.cli.printing import echo
from edge_spec.cli.wording import in_options
from edge_spec.controller.request import DEFAULT_N_CTX, require_n_ctx
from edge_spec.engines.registry import AUTO, engine_names, fallback, settings_of, titles_with
from edge_spec.engines.registry import engine as engine_of
from edge_spec.engines.settings import ModelSettings
from edge_spec.loading import load
from edge_spec.memory.budget import SHARE, parse_memory
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

_PASSED = (
    "model",
    "draft",
    "intermediate",
    "engine",
    "draft_engine",
    "intermediate_engine",
    "speculation",
    "draft_limit",
    "n_threads",
    "n_threads_batch",
    "memory",
    "cache_dir",
)
_SETTINGS = ("n_threads", "n_threads_batch", "kv_k", "kv_v", "repack")


class _Context(click.ParamType):  # type: ignore[type-arg]
    """A number of tokens, or the least one: the argument of ``load`` that it is, and its value."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        found = re.fullmatch(r" *(-?[0-9]{1,18}) *(\+?) *", str(value), re.ASCII)
        if found is None:
            said = f"{str(value)[:32]!r} is not a number of tokens; write 4096, or 4096+ for at least as many"
            self.fail(said, param, ctx)
        return "min_n_ctx" if found[2] else "n_ctx", int(found[1])


def running_option(*flags: str, **more: Any) -> Callable[[Command], Command]:
    """An option of how models are run."""
    return option(_RUNNING, *flags, **more)


def context_option(text: str) -> Callable[[Command], Command]:
    """``--ctx``: as the argument of ``load`` that it sets, and its value."""
    return running_option("--ctx", type=_Context(), metavar="N[+]", help=text)


def memory_option(text: str = "Memory limit, such as 2GiB.") -> Callable[[Command], Command]:
    """``--memory``."""
    share = f"{SHARE[0] * 100 // SHARE[1]}% of what is free"
    return running_option("--memory", metavar="SIZE", shown=share, help=text)


def threads_option() -> Callable[[Command], Command]:
    """``--threads``."""
    text, default = "Threads; 0 for the number of cores.", ModelSettings.n_threads
    return running_option("--threads", "n_threads", type=int, metavar="N", shown=default, help=text)


def model_options(command: Command) -> Command:
    """MODEL and how to run it."""
    return _with_options(model_argument(), command)


def models_options(command: Command) -> Command:
    """Any number of MODELs and how to run them."""
    return _with_options(click.argument("models", type=ModelName(), nargs=-1, metavar="[MODEL]..."), command)


def _with_options(models: Callable[[Command], Command], command: Command) -> Command:
    named = ModelName()
    engine = click.Choice([AUTO, *sorted(engine_names())])
    those = titles_with("n_threads_batch", 2)
    batch = f"Threads of {those} for reading prompts and verifying drafts. [default: --threads]"
    mapped = f"Leave {titles_with('repack', False)}'s weights mapped from disk: less memory, slower."
    tokens = f"what the model was trained for, up to {DEFAULT_N_CTX}"
    runs = "What runs the intermediate model. [default: --engine]"
    auto = ", ".join(f"{each.auto_kv} on {each.title}" for each in map(engine_of, sorted(engine_names())))
    types = f"Types of cached keys and values, or one for both; auto is {auto}."
    ctx = (
        f"Maximum tokens of prompt and reply together; N+ for at least N, more where memory allows. [default: {tokens}]"
    )
    options = (
        models,
        option(_MODELS, "--draft", type=named, metavar="PATH", help="The drafter; the demo family brings its own."),
        option(_MODELS, "--intermediate", type=named, metavar="PATH", help="The intermediate model of the hierarchy."),
        option(_MODELS, "--middle", "intermediate", type=named, hidden=True),
        option(_MODELS, "--draft-limit", type=int, metavar="N", help="Maximum tokens drafted per round."),
        option(_RUNNING, "--engine", type=engine, default=default_of(load, "engine"), help="What runs the models."),
        option(_RUNNING, "--draft-engine", type=engine, help="What runs the drafter. [default: --engine]"),
        option(_RUNNING, "--intermediate-engine", type=engine, help=runs),
        option(_RUNNING, "--middle-engine", "intermediate_engine", type=engine, hidden=True),
        context_option(ctx),
        memory_option(),
        option(_RUNNING, "--kv", metavar="K/V", shown=ModelSettings.kv_k, help=types),
        threads_option(),
        option(_RUNNING, "--threads-batch", "n_threads_batch", type=int, metavar="N", help=batch),
        option(_RUNNING, "--no-repack", is_flag=True, help=mapped),
        option(_RUNNING, "-v", "--verbose", is_flag=True, help=f"Show {fallback().title}'s log."),
    )
    for each in reversed(options):
        command = each(command)
    return folder_options(command)


def load_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``edge_spec.load`` from the values of the options here, taken only where given.

    What can be seen to be wrong without opening a file is refused here, before anybody asks for a prompt.

    Raises:
        SettingsError: a value out of its range. ModelNotFound, NotAModel: there is no such model.
    """
    arguments = {name: values[name] for name in _PASSED if values.get(name) is not None}
    arguments["verbose"] = values["verbose"]
    arguments["on_wait"] = lambda sentence: echo(f"edge-spec: {in_options(sentence)} ...", err=True)
    arguments["on_progress"] = Bar()
    if values["ctx"] is not None:
        name, n_tokens = values["ctx"]
        arguments[name] = n_tokens
    if values["kv"] is not None:
        keys, separator, cached = values["kv"].partition("/")
        arguments |= {"kv_k": keys, "kv_v": cached if separator else keys}
    if values["no_repack"]:
        arguments["repack"] = False
    _refuse_wrong(arguments)
    return arguments


def _refuse_wrong(arguments: Mapping[str, Any]) -> None:
    """What ``load`` would refuse as well, but later."""
    for name in {"n_ctx", "min_n_ctx"} & arguments.keys():
        require_n_ctx(name, arguments[name])
    settings = settings_of(DEFAULT_N_CTX, {name: arguments[name] for name in _SETTINGS if name in arguments})
    if "draft_limit" in arguments:
        require_whole("draft_limit", arguments["draft_limit"], 1, settings.max_rows - 1)
    if "memory" in arguments:
        parse_memory(arguments["memory"])
    resolve_family(arguments.get("model"))
    for role in ("draft", "intermediate"):
        if role in arguments:
            resolve(arguments[role])


def speculation_option(command: Command) -> Command:
    """How to draft."""
    default, choice = default_of(load, "speculation"), click.Choice(["auto", *MODES])
    text = "How to draft; affects speed, not the text (see `identity` in the README)."
    return option(_MODELS, "--speculation", type=choice, default=default, help=text)(command)


def max_tokens_option(default: int | None, text: str) -> Callable[[Command], Command]:
    """How long a reply may get; the setting for all verbs is not meant where verbs measure, with a default."""
    shared = default is None
    return option("Replies", "-n", "--max-tokens", type=Count(), default=default, metavar="N", shared=shared, help=text)
