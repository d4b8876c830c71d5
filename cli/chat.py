"""edge-spec chat: talk with a model."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from edge_spec.chat import ChatReply, ChatSession
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import (
    grammar_arguments,
    grammar_options,
    load_arguments,
    model_options,
    sampler_arguments,
    sampler_options,
)
from edge_spec.cli.prompts import argument_text
from edge_spec.cli.summary import summary
from edge_spec.cli.terminal.autosave import Autosave
from edge_spec.cli.terminal.display import THOUGHTS, Display
from edge_spec.cli.terminal.line_reader import LineReader
from edge_spec.cli.terminal.plain_display import PlainDisplay
from edge_spec.cli.terminal.status import counted
from edge_spec.cli.terminal.talk import Reader, Talk
from edge_spec.loading import load
from edge_spec.model import TextModel
from edge_spec.models import inspect, resolve_family
from edge_spec.speculation.modes import MODES

__all__ = ["command"]


@click.command("chat")
@model_options
@click.option("--system", metavar="TEXT", help="The system message.")
@click.option(
    "--speculation",
    type=click.Choice(["auto", *MODES]),
    default="auto",
    show_default=True,
    help="How to draft. It changes when a token arrives, never which.",
)
@click.option("-n", "--max-tokens", type=click.IntRange(1), metavar="N", help="Most tokens of an answer.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Ends an answer where this would appear. Repeatable.")
@click.option("--seed", type=int, metavar="N", help="Fixes the draw. [default: random, see /stats]")
@sampler_options()
@grammar_options
@click.option("--session", metavar="FILE", help="Go on with this conversation, and save it there after every turn.")
@click.option("--resume", is_flag=True, help="Go on with the last conversation.")
@click.option(
    "--thoughts",
    type=click.Choice(THOUGHTS),
    help="What becomes of a model's thoughts. [default: dim on a terminal, else hide]",
)
@click.option("--no-color", is_flag=True, help="Plain text, without Markdown; also by the variable NO_COLOR.")
@click.option("--no-history", is_flag=True, help="Leave nothing behind: neither typed lines nor the conversation.")
@click.option("--stats", is_flag=True, help="Say after every answer what speculation did.")
def command(**values: Any) -> None:
    """Talk with a model.

    MODEL is the path of a GGUF or the name of a family that comes with the package; the demo family if not
    given. /help lists the commands. From a pipe every line is a message, or what stands between two lines of
    three quotation marks; only answers are written to standard output.

    \b
    Examples:
      edge-spec chat
      edge-spec chat llama-3.2-3b-q4_0.gguf --draft llama-3.2-1b-q4_0.gguf --session talk.chat
      printf 'Hello\\nTell me more\\n' | edge-spec chat
    """
    if values["session"] is not None and values["resume"]:
        raise click.UsageError("give --session or --resume, not both")
    if values["session"] is not None and values["no_history"]:
        raise click.UsageError("--no-history keeps nothing, --session keeps the conversation: give one of them")
    if values["session"] is not None and not Path(values["session"]).absolute().parent.is_dir():
        raise click.UsageError(f"there is no folder for {values['session']}; make it first, or choose another file")
    if sys.stdin is None:
        raise click.UsageError("standard input is closed; give messages there")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that lacks a character shows a substitute rather than an error.
            stream.reconfigure(errors="replace")
    is_interactive = sys.stdin.isatty()
    has_screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    is_plain = not has_screen or values["no_color"] or bool(os.environ.get("NO_COLOR"))
    display = _display(is_plain=is_plain, thoughts=values["thoughts"])
    # A script leaves the last conversation of a person alone, unless it is told to go on with it.
    keeps = (is_interactive and not values["no_history"]) or values["resume"]
    data = _data_folder() if keeps else None
    arguments = {**load_arguments(values), "speculation": values["speculation"]}
    reader: Reader = LineReader(sys.stdin.buffer, person=sys.stderr if is_interactive else None)
    if is_interactive and os.environ.get("TERM") != "dumb":
        # Before the model, whose budget holds the program as well.
        reader = _terminal_reader(None if values["no_history"] else data, display, color=not is_plain)
    with interruptible(lambda: load(**arguments), lambda: False) as model:
        if is_interactive:
            display.show(_greeting(model, values))
        for note in model.notes:
            display.notice(note)
        autosave = _autosave(values, data, display)
        session = _session(model, values, autosave, display)

        def on_answer(reply: ChatReply) -> None:
            if values["stats"]:
                click.echo(summary(model, reply), err=True)

        Talk(session, reader=reader, display=display, autosave=autosave, on_answer=on_answer).run()


def _display(*, is_plain: bool, thoughts: str | None) -> Display:
    is_terminal = sys.stdout.isatty()
    if is_plain:
        chosen = thoughts or ("dim" if is_terminal else "hide")
        return PlainDisplay(sys.stdout, sys.stderr, is_terminal=is_terminal, thoughts=chosen)
    from rich.console import Console

    from edge_spec.cli.terminal.rich_display import RichDisplay

    return RichDisplay(Console(highlight=False, markup=False, emoji=False), thoughts=thoughts or "dim")


def _terminal_reader(data: Path | None, display: Display, *, color: bool) -> Reader:
    from edge_spec.cli.terminal.completion import CommandCompleter
    from edge_spec.cli.terminal.terminal_reader import TerminalReader, open_history

    history = open_history(data / "history" if data is not None else None, display.notice)
    return TerminalReader(history=history, completer=CommandCompleter(), color=color)


def _data_folder() -> Path | None:
    from platformdirs import user_data_path

    folder = user_data_path("edge-spec")
    # Without a home there is nothing before the tilde.
    return folder if folder.is_absolute() else None


def _autosave(values: dict[str, Any], data: Path | None, display: Display) -> Autosave:
    named = values["session"]
    path = Path(named) if named is not None else data / "last.chat" if data is not None else None
    autosave = Autosave(path, is_own=named is not None, on_notice=display.notice)
    if autosave.is_own or values["resume"] or path is None or not path.exists():
        return autosave
    display.notice("--resume goes on with the last conversation")
    return autosave


def _session(model: TextModel, values: dict[str, Any], autosave: Autosave, display: Display) -> ChatSession:
    """The conversation that is gone on with, or a new one; what the command line says counts more than the file."""
    options = sampler_arguments(values) | grammar_arguments(values)
    options |= {name: values[name] for name in ("max_tokens", "seed") if values[name] is not None}
    if values["stop"]:
        options["stop"] = [argument_text(text, "--stop") for text in values["stop"]]
    system = argument_text(values["system"], "--system") if values["system"] is not None else None
    goes_on = autosave.path is not None and autosave.path.exists() and (autosave.is_own or values["resume"])
    if not goes_on or autosave.path is None:
        if values["resume"]:
            display.notice("there is no last conversation; this is a new one")
        return model.chat(system, **options)
    session = ChatSession.load(model, autosave.path, on_notice=display.notice)
    autosave.go_on_in(autosave.path, session)
    session.set(**options)
    if system is not None and system != session.system:
        session.set_system(system)
    display.notice(f"{counted(session.n_turns, 'question')} from {autosave.path}")
    return session


def _greeting(model: TextModel, values: dict[str, Any]) -> list[str]:
    file = inspect(resolve_family(values["model"]).target)
    size = f"{file.n_params / 1e6:,.0f}M parameters, {file.quantisation}, {file.weight_bytes / (1 << 20):,.0f} MiB"
    return [
        f"edge-spec {version('edge-spec')}: {file.name}, {size}",
        f"{model.profile.name}, speculation {model.mode}, context {model.n_ctx} tokens",
        "/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves",
    ]
