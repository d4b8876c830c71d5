"""A progress bar on a terminal."""

from __future__ import annotations

from typing import Any

__all__ = ["Bar"]


class Bar:
    """Called with the bytes done and the total, shows a bar until they are equal.

    Nothing is shown where standard error is not a terminal, or one that cannot move its cursor.
    """

    def __init__(self) -> None:
        self._shown: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        if done < total and self._shown is None:
            self._show(total)
        if self._shown is None:
            return
        self._shown.update(self._task, completed=done)
        if done >= total:
            self._shown.stop()
            self._shown = None

    def _show(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

        class Steady(Console):
            """Leaves the cursor visible: Ctrl-C ends the process at once, and nothing would show it again."""

            def show_cursor(self, show: bool = True) -> bool:
                return False

        console = Steady(stderr=True)
        columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
        hidden = not console.is_terminal or console.is_dumb_terminal
        self._shown = Progress(*columns, console=console, transient=True, disable=hidden)
        self._task = self._shown.add_task("", total=total)
        self._shown.start()
