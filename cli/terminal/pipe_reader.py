"""Messages out of a pipe or a file."""

from __future__ import annotations

from typing import BinaryIO

from edge_spec.cli.prompts import decoded
from edge_spec.cli.terminal.lines import is_open, is_quoted, message_of
from edge_spec.errors import PromptError

__all__ = ["PipeReader"]


class PipeReader:
    """Each line is a message, as soon as it is there; empty lines are none."""

    is_interactive = False

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def read(self, draft: str = "", status: str = "") -> str | None:
        """The next message; None at the end.

        Raises:
            PromptError: it is no UTF-8, or quotation marks are not closed.
        """
        while (text := self._line()) is not None:
            while is_open(text):
                more = self._line()
                if more is None and is_quoted(text):
                    raise PromptError('standard input ends inside a message that began with """', hint="close it")
                text = (text if is_quoted(text) else text[:-1]) + "\n" + (more or "")
            if text.strip():
                return message_of(text)
        return None

    def _line(self) -> str | None:
        raw = self._source.readline()
        return decoded(raw, "standard input").rstrip("\r\n") if raw else None
