"""Laws of Ctrl-C at a terminal: what was drawn before it is seen, and what was typed before it is read."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edge_spec.cli.interrupt import hears_interrupts, keeps_what_is_drawn, silent_keys

if sys.platform == "win32":
    pytest.skip("needs pseudo-terminals", allow_module_level=True)

import pty
import termios

DRAWN = b"".join(b"line %d\n" % number for number in range(1000))
"""More than a window takes at once: what it has not taken is what a terminal drops."""


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A pseudo-terminal as standard input: the side of its window, and that of the program."""
    window, program = pty.openpty()
    with open(program, "rb", buffering=0, closefd=False) as keys:
        monkeypatch.setattr(sys, "stdin", keys)
        yield window, program
    for side in (window, program):
        os.close(side)


def flags(program: int) -> int:
    local: int = termios.tcgetattr(program)[3]
    return local


def seen_after_ctrl_c(window: int, program: int) -> bytes:
    """What the window is still shown of what was drawn before somebody pressed Ctrl-C in it, which is echoed."""
    assert os.write(program, DRAWN) == len(DRAWN)
    os.write(window, b"\x03")
    found = b""
    while b"^C" not in found:
        assert select.select([window], [], [], 30)[0], "nothing more is shown"
        found += os.read(window, 4096)
    return found.partition(b"^C")[0]


def test_what_is_drawn_survives_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as (window, program):
        with keeps_what_is_drawn():
            assert seen_after_ctrl_c(window, program) == DRAWN.replace(b"\n", b"\r\n")
        # Without it, a terminal drops some: the law would hold nothing otherwise.
        assert seen_after_ctrl_c(window, program) != DRAWN.replace(b"\n", b"\r\n")


def test_what_is_typed_ahead_survives_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as (window, program), keeps_what_is_drawn(), silent_keys():
        os.write(window, b"typed ahead\x03, and after\n")
        assert os.read(program, 100) == b"typed ahead, and after\n"


def test_the_terminal_is_left_as_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as (_, program):
        before = termios.tcgetattr(program)
        with pytest.raises(ZeroDivisionError), keeps_what_is_drawn():
            assert flags(program) == before[3] | termios.NOFLSH
            with silent_keys():
                assert flags(program) == (before[3] | termios.NOFLSH) & ~termios.ECHO
            assert flags(program) == before[3] | termios.NOFLSH
            raise ZeroDivisionError
        assert termios.tcgetattr(program) == before


def test_without_a_terminal_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as keys:
        monkeypatch.setattr(sys, "stdin", keys)
        with keeps_what_is_drawn(), silent_keys():
            pass
    os.close(writing)


def test_a_listener_hears_every_interruption_and_only_inside() -> None:
    heard: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    with hears_interrupts(lambda: heard.append(1)):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
    assert heard == [1, 1, 1]
    assert signal.getsignal(signal.SIGINT) is before
