"""edge-spec serve: serve models to clients of OpenAI, Anthropic and ollama."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any, TypeVar

import click

from edge_spec.cli.folders import models_in
from edge_spec.cli.help import Verb, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import load_arguments, max_tokens_option, models_options, speculation_option
from edge_spec.cli.output import print_notes
from edge_spec.cli.printing import echo, one_line
from edge_spec.cli.reply_options import reply_arguments, sampler_options
from edge_spec.controller.options import StrPath
from edge_spec.errors import SettingsError
from edge_spec.extras import not_installed
from edge_spec.library.stores import name_of
from edge_spec.loading import load
from edge_spec.memory import format_size, parse_size
from edge_spec.model import TextModel
from edge_spec.models import resolve_family
from edge_spec.sampling import SAMPLER_OPTIONS
from edge_spec.server.settings import ServerSettings, duration_s

__all__ = ["command"]

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = ServerSettings()


def _option(flag: str, text: str, metavar: str | None, *, field: str = "", **more: Any) -> Callable[[Command], Command]:
    """Return an option that sets a field of ``ServerSettings``, by its own name if none is given."""
    name = field or flag.removeprefix("--").replace("-", "_")
    more = {"check": lambda value: ServerSettings(**{"insecure": True, name: value}), **more}
    if default := getattr(_DEFAULTS, name):
        more.setdefault("default", default)
    return option("Server", flag, name, metavar=metavar, help=text, **more)


_KEY = "The key that clients must send; better in the variable EDGE_SPEC_API_KEY, since others see command lines."
_ORIGIN = "Web pages that may use it, such as https://chat.example. Repeatable."
_AT_ONCE = "Requests that are answered at a time. [default: as many as a decode can advance]"
_KEEP = (
    "How long one of several models stays open after it was used last, such as 300, 5m or 0; -1 until others need its "
    "memory."
)
_BODY: dict[str, Any] = {
    "default": format_size(_DEFAULTS.max_body_bytes).replace(" ", ""),
    "check": lambda value: ServerSettings(max_body_bytes=parse_size(value, "max_body_bytes")),
}


def _idle_s(duration: str) -> float:
    try:
        return duration_s(duration)
    except ValueError:
        raise SettingsError(f"is {duration[:32]!r}", argument="idle_s", hint="write 300, 5m, 1h30m or -1") from None


_IDLE: dict[str, Any] = {"default": "5m", "check": _idle_s}


@click.command("serve", cls=Verb)
@_option("--host", "Listen at this address.", "ADDRESS")
@_option("--port", "Listen at this port; 0 for any that is free.", "N")
@_option("--api-key", _KEY, "KEY", envvar="EDGE_SPEC_API_KEY")
@_option("--insecure", "Let other computers use it without a key.", None, is_flag=True)
@_option("--name", "What clients call the model. [default: as its file]", "TEXT")
@_option("--allow-host", "Another name of this server. Repeatable.", "NAME", field="allowed_hosts", multiple=True)
@_option("--allow-origin", _ORIGIN, "URL", field="allowed_origins", multiple=True)
@_option("--at-once", _AT_ONCE, "N", type=int)
@_option("--max-waiting", "Maximum requests that wait; further ones get status 429.", "N")
@_option("--max-body", "The largest request.", "SIZE", field="max_body_bytes", **_BODY)
@_option("--timeout", "Maximum seconds for a request, waiting included.", "SECONDS", field="timeout_s")
@_option("--keep-alive", _KEEP, "DURATION", field="idle_s", **_IDLE)
@max_tokens_option(None, "Maximum tokens of a reply where a request does not say. [default: what fits --ctx]")
@speculation_option
@models_options
@sampler_options()
def command(**values: Any) -> int:
    """Serve models to clients of OpenAI, Anthropic and ollama.

    MODEL is the path of a GGUF, of a published ONNX model or its folder, or a name that edge-spec list shows. One is
    loaded at once and stays open. Of several, or all that edge-spec list shows if none is named, each is loaded when a
    request names it, and closed when others need its memory or it was idle for long. Sampler options are the
    defaults of requests. Ctrl-C stops it.

    \b
    Examples:
      edge-spec serve --memory 4GiB
      edge-spec serve llama-3.2-3b-q4_0.gguf --draft llama-3.2-1b-q4_0.gguf --memory 4GiB
      edge-spec serve smollm2 demo --keep-alive 1h
      curl http://127.0.0.1:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'
    """
    models = values.pop("models")
    only = models[0] if len(models) == 1 else None
    arguments = load_arguments({**values, "model": only})
    if only is None:
        _require_alike(values, models)
    given = {name: value for name, value in values.items() if name in ServerSettings.__dataclass_fields__} | {
        "name": (values["name"] or name_of(only)) if only is not None else "",
        "api_key": values["api_key"] or None,
        "max_body_bytes": parse_size(values["max_body_bytes"], "max_body_bytes"),
        "idle_s": _idle_s(values["idle_s"]),
    }
    settings = ServerSettings(**given, sampling=reply_arguments(values, SAMPLER_OPTIONS), log=_log)
    try:
        from edge_spec.server.loader import Loader
        from edge_spec.server.running import ModelServer, listen
    except ImportError as error:
        raise not_installed(str(error.name), extra="serve") from None
    # Listen before loading: a taken port is reported at once, and early clients wait for the model.
    with listen(settings.host, settings.port) as listening, ExitStack() as loaded:
        source: TextModel | Loader
        if only is not None:
            source = loaded.enter_context(interruptible(lambda: load(**arguments), lambda: False))
            what, context = settings.name, f", {source.n_ctx} tokens of context"
        else:
            del arguments["model"], arguments["on_progress"], arguments["on_wait"]
            source = Loader(arguments, models, folder=models_in(values["model_dir"]), environment=os.environ)
            what, context = f"{len(models)} models" if models else "all models of edge-spec list", ""
        print_notes(source.notes)
        server = ModelServer(source, settings, listening=listening)
        if settings.is_open:
            _log("warning: everybody who reaches this address can use the model; give --api-key")
        # A program that reads this line may end the server at once.
        server.run(lambda: _log(f"{what} at {server.url}/v1 (edge-spec {version('edge-spec')}{context})"))
        _log("stopped")
    return 0


def _require_alike(values: Mapping[str, Any], models: Sequence[StrPath]) -> None:
    """Refuse options that are for one model."""
    for name in ("draft", "intermediate", "name"):
        if values[name] is not None and values[name] != "":
            raise SettingsError("is for one model", argument=name, hint="name that one model, or leave it out")
    names = [name_of(each) for each in models]
    for each in names:
        if names.count(each) > 1:
            raise SettingsError(f"two models are called {each!r}", hint="rename one of the files")
    for model in models:
        resolve_family(model)


def _log(line: str) -> None:
    echo(f"edge-spec: {one_line(line)}", err=True)
