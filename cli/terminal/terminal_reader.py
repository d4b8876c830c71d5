"""Read messages on a terminal: a line editor with history and completion, for windows of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, emacs_insert_mode, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.bindings.named_commands import get_by_name
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.output.defaults import create_output
from prompt_toolkit.styles import Style

from edge_spec.cli.printing import safe
from edge_spec.cli.terminal import settings
from edge_spec.cli.terminal.commands import COMMANDS
from edge_spec.cli.terminal.line_reader import is_open, is_quoted, message_of

__all__ = ["CommandCompleter", "TerminalReader", "open_history"]

_MARK, _MORE = "> ", ". "

_STYLE = Style.from_dict({"bottom-toolbar": "noreverse dim", "prompt": "bold"})


class TerminalReader:
    """A line editor with history, several lines, completion and a status line.

    Enter sends, Alt-Enter begins a new line, Ctrl-X Ctrl-E opens an editor.

    Args:
        source, screen: where keys come from and where they are shown; the terminal if None.
    """

    is_interactive = can_edit = True

    def __init__(
        self,
        *,
        history: History,
        completer: Completer,
        color: bool = True,
        source: Input | None = None,
        screen: Output | None = None,
    ) -> None:
        self._session: PromptSession[str] = PromptSession(
            multiline=True,
            history=history,
            completer=completer,
            complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
            key_bindings=_keys(),
            prompt_continuation=lambda width, line, wraps: "" if wraps else _MORE,
            enable_open_in_editor=True,
            style=_STYLE,
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            input=source,
            # If answers go to a file, lines are edited on standard error.
            output=screen or create_output(always_prefer_tty=True),
        )

    def read(self, draft: str = "", status: str = "") -> str | None:
        """Return the next message; None at the end.

        Args:
            draft: text that is in the line already.
            status: the status line below.

        Raises:
            KeyboardInterrupt: Ctrl-C in an empty line.
        """
        try:
            text = self._session.prompt(
                [("class:prompt", _MARK)],
                default=draft,
                bottom_toolbar=(lambda: _fitting(status, get_app().output.get_size().columns)) if status else None,
            )
        except EOFError:
            return None
        return message_of(safe(text))


_UNDOABLE = 2048
"""Longest line whose keys can be undone one by one: each undo step stores the whole text."""


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("<any>", filter=emacs_insert_mode, save_before=_is_short)
    def _(event: KeyPressEvent) -> None:
        get_by_name("self-insert").call(event)

    # During a history search these keys belong to the search.
    in_line = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=in_line)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text) and buffer.document.is_cursor_at_the_end:
            if not is_quoted(buffer.text):
                buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=in_line)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=in_line)
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.app.exit(result="", style="class:aborting")
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


def _is_short(event: KeyPressEvent) -> bool:
    return not event.is_repeat and len(event.current_buffer.text) < _UNDOABLE


def _fitting(status: str, columns: int) -> str:
    """Return as many parts of the status line as fit the terminal."""
    parts = status.split(" · ")
    while len(parts) > 1 and len(" · ".join(parts)) >= columns:
        parts.pop()
    return " · ".join(parts)[: columns - 1]


def open_history(path: Path | None, on_notice: Callable[[str], object]) -> History:
    """Return the input history, kept in a file that only its owner can read; if that fails, only in memory."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("ab"), path.open("rb"):
            pass
    except OSError as error:
        on_notice(f"the history cannot be kept in {path}: {error.strerror}")
        return InMemoryHistory()
    return _CarefulHistory(str(path))


class _CarefulHistory(FileHistory):
    """A history file whose read and write errors are ignored, so that a full disk does not end a conversation."""

    def load_history_strings(self) -> Iterable[str]:
        try:
            return [safe(line) for line in super().load_history_strings()]
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        try:
            super().store_string(safe(string))
        except OSError:
            return


class CommandCompleter(Completer):
    """Completes commands, the names of settings, and paths."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield completions of the text before the cursor."""
        text = document.text_before_cursor
        if not text.startswith("/") or text.startswith("//") or "\n" in text:
            return
        name, separator, argument = text[1:].partition(" ")
        if not separator:
            for command in COMMANDS.values():
                if command.name.startswith(name.lower()):
                    yield Completion(f"/{command.name}", -len(text), display_meta=command.help)
        elif name == "set" and " " not in argument:
            for setting in settings.names():
                if setting.startswith(argument):
                    yield Completion(setting, -len(argument))
        elif name in ("save", "save!", "load"):
            yield from self._paths.get_completions(Document(argument), complete_event)
