"""What verbs print on standard output besides text."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any

import click

__all__ = ["print_json", "print_table"]


def print_json(record: Any) -> None:
    """One JSON value on one line."""
    try:
        is_unicode = codecs.lookup(sys.stdout.encoding).name.startswith("utf")
    except (LookupError, TypeError, AttributeError):
        is_unicode = False
    click.echo(json.dumps(record, ensure_ascii=not is_unicode))


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Container[int] = ()) -> None:
    """Columns as wide as their widest cell; nothing is wrapped or cut, on a terminal or in a pipe.

    Args:
        titles: of the columns.
        rows: as many cells each.
        right: columns that are aligned on the right.
    """
    table = [titles, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())
