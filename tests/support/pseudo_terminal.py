"""A program on a terminal that is emulated: what a person types, and what is on the screen then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pexpect
import pyte

__all__ = ["PseudoTerminal"]


class PseudoTerminal:
    """A program and its screen.

    Args:
        command: the program and its arguments.
        surroundings: its environment.
    """

    def __init__(
        self, command: Sequence[str], surroundings: Mapping[str, str], *, columns: int = 80, rows: int = 24
    ) -> None:
        self.process = pexpect.spawn(
            command[0], list(command[1:]), env=dict(surroundings), dimensions=(rows, columns), timeout=30
        )
        self.process.delaybeforesend = None
        self.screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=0.5)
        # An emulator must not stumble over what it does not know.
        known = self.screen.select_graphic_rendition
        self.screen.select_graphic_rendition = lambda *codes, private=False: None if private else known(*codes)
        # The program asks where the cursor is.
        self.screen.write_process_input = lambda data: self.process.send(data)
        self.raw = b""
        self._stream = pyte.ByteStream(self.screen)

    def read(self, seconds: float = 0.05) -> None:
        """Let the screen show what the program writes for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                data = self.process.read_nonblocking(65536, timeout=0.02)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                return
            self._show(data)

    def _show(self, data: bytes) -> None:
        self.raw += data
        self._stream.feed(data)

    def wait(self, condition: str | Callable[[str], object], seconds: float = 30) -> str:
        """Read until a text, or what a function looks for, is on the screen; returns all of it."""
        until = time.monotonic() + seconds
        while True:
            text = self.text
            if condition in text if isinstance(condition, str) else condition(text):
                return text
            if time.monotonic() > until or not self.process.isalive():
                self.read()
                if condition in self.text if isinstance(condition, str) else condition(self.text):
                    return self.text
                raise AssertionError(f"never seen: {condition}\n{self.text}")
            self.read()

    def prompt(self) -> str:
        """Wait until the program waits for a line."""
        return self.wait(lambda text: self.is_asking)

    def writing(self) -> str:
        """Wait until an answer is being written, with the status line below it."""
        return self.wait(lambda text: "tokens/s" in self.screen.display[self.screen.cursor.y])

    @property
    def is_asking(self) -> bool:
        """Whether the cursor stands behind an empty prompt, and the screen is finished: it is hidden meanwhile."""
        if self.screen.cursor.hidden:
            return False
        line = self.screen.display[self.screen.cursor.y].rstrip()
        return line == ">" and self.screen.cursor.x == 2

    def type(self, text: str) -> None:
        """Press keys."""
        self.process.send(text)

    def say(self, line: str) -> str:
        """Type a line, press Enter and wait for the next prompt; returns the text since."""
        self.prompt()
        self.type(line)
        self.wait(lambda text: not self.is_asking)
        n = self.screen.cursor.y + len(self.screen.history.top)
        self.type("\r")
        self.wait(lambda text: self.is_asking and self.screen.cursor.y + len(self.screen.history.top) > n)
        lines = self.text.split("\n")
        return "\n".join(lines[n + 1 : self.screen.cursor.y + len(self.screen.history.top)])

    def resize(self, columns: int, rows: int) -> None:
        """Drag the window."""
        self.screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)

    @property
    def text(self) -> str:
        """Everything that has been on the screen and still is."""
        top = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return "\n".join(line.rstrip() for line in [*top, *self.screen.display])

    def end(self) -> int:
        """Wait for the program's end; returns its exit code, or minus the signal."""
        until = time.monotonic() + 30
        while self.process.isalive() and time.monotonic() < until:
            self.read()
        # What it wrote last may still wait in the terminal.
        with suppress(pexpect.EOF, pexpect.TIMEOUT):
            while not self.process.isalive():
                self._show(self.process.read_nonblocking(65536, timeout=1))
        self.process.close(force=True)
        code: Any = self.process.exitstatus
        return int(code) if code is not None else -int(self.process.signalstatus)


def quiet(surroundings: Mapping[str, str], home: str) -> dict[str, str]:
    """An environment of a terminal that can do everything, with a home of its own."""
    kept = {name: value for name, value in surroundings.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    return {**kept, "HOME": home, "XDG_DATA_HOME": str(Path(home) / "data"), "TERM": "xterm-256color"}
