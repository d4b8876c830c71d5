"""Streaming Markdown, colors and a status line, for capable terminals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Heading, Markdown
from rich.segment import Segment
from rich.text import Text

from edge_spec.cli.printing import safe

__all__ = ["Blocks", "RichDisplay", "render"]


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
        """Print a dim line above the block being written."""
        self._console.print(Text(safe(sentence), style="dim"))

    def error(self, sentence: str) -> None:
        """Print a red line."""
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
        """Store the text until ``refresh``."""
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


def _parser() -> MarkdownIt:
    # Everything that a model writes must be visible: disable rules that drop text.
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable(["reference", "image"])


class Blocks:
    """Cuts Markdown into its top-level blocks while it streams in.

    A block is finished once a whole line of the next one is there: CommonMark proceeds line by line and never
    reopens a block.
    """

    def __init__(self) -> None:
        self._parser = _parser()
        self._seen = 0
        self.rest = ""
        """Text that does not belong to a finished block yet."""

    def push(self, text: str) -> None:
        """Add text."""
        self.rest += text

    def take(self) -> list[str]:
        """Return the blocks that have been finished since the last call."""
        whole = self.rest[: self.rest.rfind("\n") + 1]
        if len(whole) == self._seen:
            return []
        lines = whole.split("\n")
        starts = self._starts(whole)
        cuts = [sum(len(line) + 1 for line in lines[:start]) for start in starts]
        blocks = [self.rest[start:end] for start, end in pairwise(cuts)]
        if blocks:
            self.rest = self.rest[cuts[-1] :]
            whole = whole[cuts[-1] :]
        self._seen = len(whole)
        return blocks

    def finish(self) -> list[str]:
        """Return the remaining blocks, at the end of the text."""
        self.rest += "\n"
        blocks = [*self.take(), self.rest]
        self.rest, self._seen = "", 0
        return [block for block in blocks if block.strip()]

    def _starts(self, text: str) -> list[int]:
        tokens = self._parser.parse(text)
        return [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]


def render(block: str) -> Markdown:
    """Return a block as rich shows it; line breaks in paragraphs are kept."""
    return _Markdown(block.strip("\n"))


class _Heading(Heading):
    LEVEL_ALIGN = {level: "left" for level in ("h1", "h2", "h3", "h4", "h5", "h6")}  # noqa: RUF012


class _Markdown(Markdown):
    elements = {**Markdown.elements, "heading_open": _Heading}  # noqa: RUF012

    def __init__(self, markup: str) -> None:
        # Show the address of a link.
        super().__init__(markup, code_theme="ansi_dark", hyperlinks=False)
        self.parsed = [_with_line_breaks(token) for token in _parser().parse(markup)]


def _with_line_breaks(token: Token) -> Token:
    if not token.children:
        return token
    children = [replace(child, type="hardbreak") if child.type == "softbreak" else child for child in token.children]
    return replace(token, children=children)
