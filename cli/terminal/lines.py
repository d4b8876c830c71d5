"""Messages of several lines.

A backslash at the end of a line continues the message on the next one, and so does everything between two groups
of three quotation marks.
"""

from __future__ import annotations

__all__ = ["is_open", "is_quoted", "message_of"]

_MARK = '"""'


def is_quoted(text: str) -> bool:
    """Whether a message is between quotation marks, or begins with them."""
    return text.lstrip().startswith(_MARK)


def is_open(text: str) -> bool:
    """Whether more lines belong to this message."""
    if is_quoted(text):
        return _MARK not in text.lstrip()[len(_MARK) :]
    return text.endswith("\\")


def message_of(text: str) -> str:
    """The message without quotation marks around it."""
    if not is_quoted(text):
        return text
    return text.strip().removeprefix(_MARK).removesuffix(_MARK).strip("\n")
