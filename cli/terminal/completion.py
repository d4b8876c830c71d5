"""Completion of commands with the Tab key."""

from __future__ import annotations

from collections.abc import Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from edge_spec.cli.terminal import settings
from edge_spec.cli.terminal.commands import COMMANDS

__all__ = ["CommandCompleter"]


class CommandCompleter(Completer):
    """Completes commands, the names of settings, and paths."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Ways to complete the text before the cursor."""
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
