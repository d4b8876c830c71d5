"""The only module that prints. It replaces control characters, so that foreign text cannot control the terminal.

Names of models and files come from hubs, archives and other programs, texts from models.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import click

__all__ = ["echo", "one_line", "safe", "safe_json", "write_text"]

# Control characters could move the cursor, rename the window or send input as if the user had typed it.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    """Return the text with a replacement character for each control character but newlines and tabs."""
    return _UNSAFE.sub("\ufffd", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return what ``safe`` returns, with newlines and tabs replaced as well; for names and other one-line texts."""
    return safe(text).replace("\n", "\ufffd").replace("\t", "\ufffd")


def safe_json(text: str) -> str:
    """Return equivalent JSON without control characters, which only its strings can contain."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: Any = "", *, err: bool = False) -> None:
    """Print a line."""
    click.echo(safe(str(text)), err=err)


def write_text(text: str) -> None:
    """Print a model's text: with safe characters on a terminal, unchanged in a pipe or a file."""
    sys.stdout.write(safe(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
