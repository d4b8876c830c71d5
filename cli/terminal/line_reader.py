"""Read messages line by line, from a pipe, a file or a dumb terminal.

A backslash at the end of a line continues the message on the next one, and so does everything between two groups
of three quotation marks.
"""

from __future__ import annotations

from typing import BinaryIO, TextIO

from edge_spec.cli.interrupt import hears_interrupts, raise_interrupt
from edge_spec.cli.prompts import decoded
from edge_spec.errors import PromptError

__all__ = ["LineReader", "is_open", "is_quoted", "message_of"]

_MARK = '"""'


def is_quoted(text: str) -> bool:
    """Return whether a message is between quotation marks, or begins with them."""
    return text.lstrip().startswith(_MARK)


def is_open(text: str) -> bool:
    """Return whether more lines belong to this message."""
    if is_quoted(text):
        return _MARK not in text.lstrip()[len(_MARK) :]
    return text.endswith("\\")


def message_of(text: str) -> str:
    """Return the message without quotation marks around it."""
    if not is_quoted(text):
        return text
    return text.strip().removeprefix(_MARK).removesuffix(_MARK).strip("\n")


class LineReader:
    """Each line is a message as soon as it arrives; empty lines are skipped.

    Args:
        source: where the lines come from.
        person: where to prompt a person for them; None for a script.
    """

    can_edit = False

    def __init__(self, source: BinaryIO, *, person: TextIO | None = None) -> None:
        self.is_interactive = person is not None
        self._source = source
        self._person = person

    def read(self, draft: str = "", status: str = "") -> str | None:
        """Return the next message; None at the end.

        Raises:
            PromptError: it is not UTF-8, or quotation marks are not closed.
            KeyboardInterrupt: Ctrl-C.
        """
        with hears_interrupts(raise_interrupt):
            while (text := self._line("> ")) is not None:
                while is_open(text):
                    more = self._line(". ")
                    if more is None and is_quoted(text):
                        raise PromptError('the input ends inside a message that began with """', hint="close it")
                    text = (text if is_quoted(text) else text[:-1]) + "\n" + (more or "")
                if text.strip():
                    return message_of(text)
            return None

    def _line(self, prompt: str) -> str | None:
        if self._person is not None:
            self._person.write(prompt)
            self._person.flush()
        try:
            raw = self._source.readline()
        except KeyboardInterrupt:
            if self._person is not None:
                self._person.write("\n")
            raise
        return decoded(raw, "standard input").rstrip("\r\n") if raw else None
