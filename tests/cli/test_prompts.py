"""Laws of where a prompt comes from: what is typed, files, pipes, and standard inputs that are closed or inherited."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from edge_spec.cli.prompts import read_prompt


@pytest.fixture
def standard_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Makes a descriptor standard input."""
    opened = []

    def use(descriptor: int) -> None:
        opened.append(os.fdopen(descriptor, "r"))
        monkeypatch.setattr(sys, "stdin", opened[-1])

    yield use
    for each in opened:
        each.close()


def piped(content: bytes) -> int:
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    return reader


def test_words_behind_the_model_follow_what_is_piped(standard_input: Callable[[int], None]) -> None:
    standard_input(piped(b"a diff\n\n"))
    assert read_prompt(None, None, "Describe it.") == "a diff\n\nDescribe it."
    standard_input(piped(b" \n"))
    assert read_prompt(None, None, "Hello") == "Hello"
    standard_input(piped(b"all of it\n\n"))
    assert read_prompt(None, None) == "all of it\n"


def test_the_last_line_break_is_no_part_of_the_prompt(standard_input: Callable[[int], None], tmp_path: Path) -> None:
    for written in (b"Once upon a time\n", b"Once upon a time\r\n", b"Once upon a time"):
        standard_input(piped(written))
        assert read_prompt(None, None) == "Once upon a time"
        (tmp_path / "prompt.txt").write_bytes(written)
        assert read_prompt(None, str(tmp_path / "prompt.txt")) == "Once upon a time"


def test_a_pipe_that_nobody_closes_is_not_waited_for_in_silence(
    standard_input: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    standard_input(reader)
    closing = threading.Timer(0.2, os.close, [writer])
    closing.start()
    assert read_prompt(None, None, "Hello", silent_s=0.02) == "Hello"
    said = "edge-spec: reading standard input until it ends; -p TEXT does not read it ...\n"
    assert capsys.readouterr().err == said
    standard_input(piped(b"at once"))
    read_prompt(None, None)
    assert capsys.readouterr().err == ""


def test_what_comes_through_a_socket_is_read(standard_input: Callable[[int], None]) -> None:
    here, there = socket.socketpair()
    there.sendall(b"a diff")
    there.close()
    standard_input(here.detach())
    assert read_prompt(None, None, "Describe it.") == "a diff\n\nDescribe it."


def test_words_follow_a_file(standard_input: Callable[[int], None], tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("notes\n")
    standard_input(os.open(tmp_path / "notes", os.O_RDONLY))
    assert read_prompt(None, None, "Sum up.") == "notes\n\nSum up."
    standard_input(piped(b"not this"))
    assert read_prompt(None, str(tmp_path / "notes"), "Sum up.") == "notes\n\nSum up."
    standard_input(piped(b"this"))
    assert read_prompt(None, "-", "Sum up.") == "this\n\nSum up."


def test_nothing_is_waited_for_where_standard_input_is_no_pipe(
    standard_input: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    standard_input(os.open(os.devnull, os.O_RDONLY))
    assert read_prompt(None, None, "Hello") == "Hello"
    monkeypatch.setattr(sys, "stdin", None)
    assert read_prompt(None, None, "Hello") == "Hello"
    with pytest.raises(click.UsageError, match="no prompt"):
        read_prompt(None, None)


def test_the_option_reads_nothing_else(standard_input: Callable[[int], None]) -> None:
    reader, writer = os.pipe()  # never closed: a reader would wait for ever
    standard_input(reader)
    assert read_prompt("Hello", None) == "Hello"
    os.close(writer)
    for arguments in (("a", "b", None), ("a", None, "c")):
        with pytest.raises(click.UsageError):
            read_prompt(*arguments)
    with pytest.raises(click.UsageError, match="empty"):
        read_prompt(None, None, " ")
