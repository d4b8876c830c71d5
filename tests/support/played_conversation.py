"""A conversation in a terminal that follows a script."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from click.exceptions import Exit

from edge_spec.cli.terminal.autosave import Autosave
from edge_spec.cli.terminal.conversation import Conversation
from edge_spec.cli.terminal.conversation_loop import converse
from edge_spec.cli.terminal.display import PlainDisplay
from edge_spec.model import TextModel

__all__ = ["Played", "Script", "errors"]


class Script:
    """Says what it was given, line by line, and remembers what stood in the line already."""

    def __init__(self, *lines: str, is_interactive: bool = True) -> None:
        self.is_interactive = self.can_edit = is_interactive
        self.drafts: list[str] = []
        self.status = ""
        self._lines = list(lines)

    def read(self, draft: str = "", status: str = "") -> str | None:
        self.drafts.append(draft)
        self.status = status
        return self._lines.pop(0) if self._lines else None


class Played:
    """A conversation that has been played: its session, and what was shown."""

    def __init__(
        self, model: TextModel, *lines: str, path: Path | None = None, folder: Path | None = None, **options: Any
    ) -> None:
        self.out, self.notes = io.StringIO(), io.StringIO()
        self.reader = Script(*lines)
        display = PlainDisplay(self.out, self.notes)
        autosave = Autosave(path, folder=folder, on_notice=display.notice)
        session = model.chat(**{"seed": 3, "max_tokens": 12, **options})
        self.conversation = Conversation(session, reader=self.reader, display=display, autosave=autosave)
        self.code = 0
        try:
            converse(self.conversation)
        except Exit as left:
            self.code = left.exit_code
        self.said = self.notes.getvalue()

    @property
    def path(self) -> Path | None:
        return self.conversation.autosave.path

    @property
    def contents(self) -> list[str]:
        return [message.content for message in self.conversation.session.messages]


def errors(played: Played) -> list[str]:
    return [line for line in played.said.splitlines() if line.startswith("edge-spec: error: ")]
