"""Laws of the screen: what streams in is shown as if it had come at once, nothing is lost, nothing is out of reach."""

from __future__ import annotations

import io
import re
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from edge_spec.cli.terminal.line_reader import LineReader, is_open, message_of
from edge_spec.cli.terminal.rich_display import Blocks, RichDisplay, render
from edge_spec.cli.terminal.terminal_reader import CommandCompleter, TerminalReader, open_history
from edge_spec.errors import PromptError

pytestmark = pytest.mark.long

MARKS = [
    "a",
    "word",
    " ",
    "  ",
    "    ",
    "\n",
    "\n",
    "\n\n",
    "# ",
    "- ",
    "* ",
    "1. ",
    "2",
    ".",
    "> ",
    "```",
    "```py\n",
    "~~~",
    "|",
    "| a | b |\n|---|---|\n",
    "---",
    "===",
    "=",
    "-",
    "**",
    "`",
    "[a]: b",
    "[a](b)",
    "![a](b)",
    "<b>",
    "&amp;",
    "\\",
    "\t",
    "你好",
    "🙂",
    "e\u0301",
]

texts = st.lists(st.sampled_from(MARKS), max_size=40).map("".join)


def screen_of(text: str, cuts: list[int], *, columns: int = 60, rows: int = 12, every: int = 1) -> list[str]:
    """Return what stands on a terminal after an answer that came in pieces."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=columns, height=rows, color_system="standard")
    display = RichDisplay(console)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    display.begin()
    for n, (start, end) in enumerate(pairwise(places)):
        display.write(text[start:end], thought=False)
        if n % every == 0:
            display.refresh("the status line")
    display.end()
    screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=0.5)
    pyte.Stream(screen).feed(written.getvalue().replace("\n", "\r\n"))
    top = ["".join(line[x].data for x in range(columns)) for line in screen.history.top]
    lines = [line.rstrip() for line in [*top, *screen.display]]
    while lines and not lines[-1]:
        lines.pop()
    return lines


@given(text=texts, cuts=st.lists(st.integers(0, 300), max_size=12))
@settings(max_examples=150)
def test_blocks_are_those_of_the_whole_text(text: str, cuts: list[int]) -> None:
    """However it is cut into pieces, and as a parser sees them that has everything at once."""
    whole, pieces = Blocks(), Blocks()
    whole.push(text)
    expected = whole.finish()
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    found: list[str] = []
    for start, end in pairwise(places):
        pieces.push(text[start:end])
        found += pieces.take()
    assert [block.strip() for block in found + pieces.finish()] == [block.strip() for block in expected]
    assert "".join(expected).split() == text.split()


@given(text=texts, cuts=st.lists(st.integers(0, 300), max_size=12), every=st.integers(1, 4))
@settings(max_examples=60)
def test_a_screen_after_streaming_is_the_screen_of_the_whole_answer(text: str, cuts: list[int], every: int) -> None:
    """What was drawn on the way is gone, also where an answer is longer than the screen."""
    assert screen_of(text, cuts, rows=8, every=every) == screen_of(text, [], rows=8)


@given(text=texts, columns=st.sampled_from([1, 2, 5, 20, 200]))
@settings(max_examples=60)
def test_any_terminal_is_wide_enough(text: str, columns: int) -> None:
    assert screen_of(text, [3, 9, 27], columns=columns, rows=3) == screen_of(text, [], columns=columns, rows=3)


@given(words=st.lists(st.text("abcäß你🙂", min_size=1, max_size=8), min_size=1, max_size=60))
@settings(max_examples=60)
def test_no_word_is_lost(words: list[str]) -> None:
    text = " ".join(words)
    shown = "".join(screen_of(text, [7, 31], columns=30, rows=6)).replace(" ", "")
    # A wide character leaves an empty cell behind it.
    assert shown == text.replace(" ", "")


def test_what_looks_like_html_or_a_link_is_seen() -> None:
    text = "Use <br> and <div>this</div>.\nA second line.\n\n[a]: http://b\n\n![cat](http://c) and [d](http://e)\n"
    shown = " ".join(screen_of(text, []))
    for part in ("<br>", "<div>this</div>", "[a]: http://b", "cat", "http://c", "http://e"):
        assert part in shown
    assert "A second line." in screen_of(text, [])


def test_markdown_looks_like_what_it_means() -> None:
    shown = screen_of("# Title\n\n- one\n- two\n\n```py\nprint(1)\n```\n\n**bold** and `code`\n", [5, 11, 30])
    assert shown[0] == "Title"
    assert [line.strip() for line in shown if line.strip()] == [
        "Title",
        "• one",
        "• two",
        "print(1)",
        "bold and code",
    ]


def test_parsers_agree_on_what_a_block_is() -> None:
    text = "para\nmore\n\n- a\n\n  b\n- c\n\n\n> q\nlazy\n\n| a |\n|---|\n| b |\n\nend"
    blocks = Blocks()
    blocks.push(text)
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    assert len(blocks.finish()) == len([token for token in tokens if token.level == 0 and token.nesting >= 0])
    assert render("x").markup == "x"


def test_an_unfinished_block_shows_its_end_and_the_status_line() -> None:
    written = io.StringIO()
    display = RichDisplay(Console(file=written, force_terminal=True, width=40, height=8))
    display.begin()
    display.write("\n".join(f"line {n}" for n in range(50)), thought=False)
    display.refresh("12 tokens/s")
    screen = pyte.Screen(40, 8)
    pyte.Stream(screen).feed(written.getvalue().replace("\n", "\r\n"))
    display.end()
    lines = [line.strip() for line in screen.display]
    assert lines[:6] == ["line 45", "line 46", "line 47", "line 48", "line 49", "12 tokens/s"]


@pytest.mark.parametrize(("thoughts", "seen"), [("dim", True), ("show", True), ("hide", False)])
def test_thoughts_stand_before_the_answer_or_nowhere(thoughts: str, seen: bool) -> None:
    written = io.StringIO()
    display = RichDisplay(Console(file=written, width=40), thoughts=thoughts)
    display.begin()
    for thought, text in ((True, "First I\nthink"), (True, " hard."), (False, "Yes.")):
        display.write(text, thought=thought)
        display.refresh("")
    display.end()
    assert ("think hard." in written.getvalue()) == seen
    assert re.search(r"Yes\.\n\n$", written.getvalue())


# --- typing


def typed(keys: str, draft: str = "") -> str | None:
    with create_pipe_input() as source:
        source.send_text(keys)
        reader = TerminalReader(
            history=InMemoryHistory(["older"]), completer=CommandCompleter(), source=source, screen=DummyOutput()
        )
        return reader.read(draft, "a status line")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("Hello\r", "Hello"),
        ("a\\\rb\r", "a\nb"),
        ("a\x1b\rb\r", "a\nb"),
        ('"""a\rb"""\r', "a\nb"),
        ("\x1b[200~int a;\nint \\\nb;\x1b[201~\r", "int a;\nint \\\nb;"),
        ("ab\x1b[D-\r", "a-b"),
        ("\x1b[A\r", "older"),
        ("\x12old\r\r", "older"),
        ("\x12old\x03new\r", "new"),
        ("/unde\x7fo\r", "/undo"),
        ("你好 🙂 e\u0301\r", "你好 🙂 e\u0301"),
        ("\x1b[200~a\x00\x07b\x1b[201~\r", "a��b"),
        ("never mind\x03", ""),
        ("\x04", None),
    ],
)
def test_keys_edit_a_line(keys: str, text: str | None) -> None:
    assert typed(keys) == text


def test_a_long_line_that_is_typed_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        assert typed("x" * 6_000 + "\x7fy\r") == "x" * 5_999 + "y"
        # To undo each of these keys, 18 MB of text would be kept.
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_a_draft_is_edited_and_ctrl_c_leaves_an_empty_line() -> None:
    assert typed(" there\r", "Hello") == "Hello there"
    with pytest.raises(KeyboardInterrupt):
        typed("\x03")


def test_commands_settings_and_files_are_completed(tmp_path: Path) -> None:
    def offers(text: str) -> list[str]:
        found = CommandCompleter().get_completions(Document(text), CompleteEvent())
        return [completion.text for completion in found]

    (tmp_path / "talk.chat").touch()
    assert offers("/un") == ["/undo"]
    assert offers("/set te") == ["temperature"]
    assert offers(f"/load {tmp_path}/ta") == ["lk.chat"]
    assert offers("hello") == offers("//un") == offers("/undo x") == []


def test_the_history_is_private_and_never_in_the_way(tmp_path: Path) -> None:
    notices: list[str] = []
    path = tmp_path / "data" / "history"
    open_history(path, notices.append).store_string("my secret\nof two lines \udc80")
    assert path.stat().st_mode & 0o077 == 0 or path.stat().st_mode & 0o222 == 0o222
    assert list(open_history(path, notices.append).load_history_strings()) == ["my secret\nof two lines \ufffd"]
    assert not notices
    (tmp_path / "file").touch()
    open_history(tmp_path / "file" / "history", notices.append).store_string("x")
    assert len(notices) == 1


# --- pipes


def test_every_line_of_a_pipe_is_a_message() -> None:
    source = io.BytesIO(b'\xef\xbb\xbfone\r\n\n  \ntwo\\\nlines\n"""three\n\n lines\n"""\n/four\nlast')
    reader = LineReader(source)
    assert list(iter(reader.read, None)) == ["one", "two\nlines", "three\n\n lines", "/four", "last"]
    for broken in (b"\xff\n", b'"""\nnever closed\n'):
        with pytest.raises(PromptError):
            LineReader(io.BytesIO(broken)).read()


def test_quotation_marks_hold_lines_together() -> None:
    assert is_open('"""') and is_open('"""a\n') and not is_open('"""a"""') and not is_open('a """')
    assert (message_of('"""a\nb"""'), message_of('say """'), message_of('""""""')) == ("a\nb", 'say """', "")
