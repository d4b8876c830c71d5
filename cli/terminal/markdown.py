"""Markdown shown while it streams in."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.markdown import Heading, Markdown

__all__ = ["Blocks", "render"]


def _parser() -> MarkdownIt:
    # Everything that a model writes must be visible: no rule that drops text.
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
        """More text."""
        self.rest += text

    def take(self) -> list[str]:
        """The blocks that have been finished since the last call."""
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
        """The remaining blocks, at the end of the text."""
        self.rest += "\n"
        blocks = [*self.take(), self.rest]
        self.rest, self._seen = "", 0
        return [block for block in blocks if block.strip()]

    def _starts(self, text: str) -> list[int]:
        tokens = self._parser.parse(text)
        return [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]


def render(block: str) -> Markdown:
    """A block as rich shows it; line breaks in paragraphs are kept."""
    return _Markdown(block.strip("\n"))


class _Heading(Heading):
    LEVEL_ALIGN = {level: "left" for level in ("h1", "h2", "h3", "h4", "h5", "h6")}  # noqa: RUF012


class _Markdown(Markdown):
    elements = {**Markdown.elements, "heading_open": _Heading}  # noqa: RUF012

    def __init__(self, markup: str) -> None:
        # Links show where they lead.
        super().__init__(markup, code_theme="ansi_dark", hyperlinks=False)
        self.parsed = [_with_line_breaks(token) for token in _parser().parse(markup)]


def _with_line_breaks(token: Token) -> Token:
    if not token.children:
        return token
    children = [replace(child, type="hardbreak") if child.type == "softbreak" else child for child in token.children]
    return replace(token, children=children)
