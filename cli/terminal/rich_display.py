"""Markdown, colours and a status line, for capable terminals."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from edge_spec.cli.terminal.markdown import Blocks, render
from edge_spec.cli.terminal.safe_text import safe

__all__ = ["RichDisplay"]


class RichDisplay:
    """Finished blocks are printed once; only the block that is being written is redrawn."""

    def __init__(self, console: Console, *, thoughts: str = "dim") -> None:
        self.thoughts = thoughts
        self._console = console
        self._live: Live | None = None
        self._blocks = Blocks()
        self._thought = ""
        self._is_thinking = False
        self._n_printed = 0

    def notice(self, sentence: str) -> None:
        """A dim line, above the block being written."""
        self._console.print(Text(safe(sentence), style="dim"))

    def error(self, sentence: str) -> None:
        """A red line."""
        self._console.print(Text(safe(sentence), style="red"))

    def show(self, lines: Iterable[str]) -> None:
        """Line by line."""
        for line in lines:
            self._console.print(Text(safe(line)))

    def begin(self) -> None:
        """Start drawing."""
        self._blocks = Blocks()
        self._thought, self._is_thinking, self._n_printed = "", False, 0
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()
        # If the process is killed, the cursor must be visible.
        self._console.show_cursor(True)

    def write(self, text: str, *, thought: bool) -> None:
        """Kept until ``refresh``."""
        if thought:
            self._is_thinking = True
            self._thought += safe(text) if self.thoughts != "hide" else ""
            return
        if self._is_thinking:
            self._print_thought(self._thought)
            self._thought, self._is_thinking = "", False
        self._blocks.push(safe(text))

    def refresh(self, status: str) -> None:
        """Print finished blocks and draw the rest."""
        if self._live is None:
            return
        if self._thought:
            lines, newline, self._thought = self._thought.rpartition("\n")
            self._print_thought(lines + newline)
        for block in self._blocks.take():
            self._print(render(block))
        unfinished: list[RenderableType] = []
        if self._thought or self._is_thinking:
            unfinished.append(Text(self._thought or "thinking ...", style=self._style))
        elif self._blocks.rest.strip():
            if self._n_printed:
                unfinished.append(Text())
            unfinished.append(render(self._blocks.rest))
        line = Text(status, style="dim", no_wrap=True, overflow="crop")
        # Room for the status line, and for the line below it where the cursor may end up.
        most = max(self._console.height - 3, 1)
        self._live.update(Group(_Lines(Group(*unfinished), most), line), refresh=True)

    def end(self) -> None:
        """Print the rest."""
        if self._live is None:
            return
        live, self._live = self._live, None
        live.update(Text(), refresh=True)
        live.stop()
        self._print_thought(self._thought)
        for block in self._blocks.finish():
            self._print(render(block))
        self._console.print()

    @property
    def _style(self) -> str:
        return "dim italic" if self.thoughts == "dim" else "italic"

    def _print(self, block: RenderableType) -> None:
        if self._n_printed:
            self._console.print()
        self._n_printed += 1
        self._console.print(_Lines(block))

    def _print_thought(self, text: str) -> None:
        if text.strip():
            self._console.print(Text(text.strip("\n"), style=self._style))
            self._n_printed += 1


class _Lines:
    """Lines without trailing spaces, which would wrap into extra lines in a narrower window.

    Args:
        most: how many of the last lines to show; all if None.
    """

    def __init__(self, content: RenderableType, most: int | None = None) -> None:
        self._content = content
        self._most = most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._content, options.update(height=None), pad=False)
        for line in lines[-self._most :] if self._most is not None else lines:
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            yield from line
            yield Segment.line()
