"""Resizing a window whose terminal reflows its lines.

prompt_toolkit erases what it has drawn from where it left the cursor. Many terminals, when they get narrower, break
long lines in two, so that the cursor is further down than that, and the first rows would stay (issues 29 and 1933 of
prompt_toolkit). Terminals that only cut lines off keep the cursor where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point

__all__ = ["erase_reflowed", "reflowed", "reflows"]

_VARIABLES = ("TMUX", "VTE_VERSION", "KITTY_WINDOW_ID", "KONSOLE_VERSION", "ALACRITTY_WINDOW_ID", "WT_SESSION")
_PROGRAMS = ("iTerm.app", "Apple_Terminal", "WezTerm", "vscode", "ghostty")


def reflows(environment: Mapping[str, str]) -> bool:
    """Whether the terminal is one that is known to reflow lines."""
    return any(environment.get(name) for name in _VARIABLES) or environment.get("TERM_PROGRAM") in _PROGRAMS


def reflowed(widths: Sequence[int], cursor: Point, columns: int) -> Point:
    """Where the cursor is once lines of these widths have been reflowed to ``columns``."""
    above = sum(max(1, -(-width // columns)) for width in widths[: cursor.y])
    return Point(x=cursor.x % columns, y=above + cursor.x // columns)


def erase_reflowed(app: Application[Any]) -> None:
    """Let an application erase all that it has drawn when the window changes."""
    redraw = app._on_resize

    def on_resize() -> None:
        screen, renderer = app.renderer.last_rendered_screen, app.renderer
        if screen is not None:
            rows = (screen.data_buffer[y] for y in range(renderer._cursor_pos.y))
            widths = [max((x + char.width for x, char in row.items() if char.char != " "), default=0) for row in rows]
            columns = max(1, app.output.get_size().columns)
            renderer._cursor_pos = reflowed(widths, renderer._cursor_pos, columns)
        redraw()

    # There is no public way in; without it a resize leaves a row too many, and no more.
    app._on_resize = on_resize  # type: ignore[method-assign]
