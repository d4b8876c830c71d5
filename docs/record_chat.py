"""Plays a conversation on an emulated terminal and draws its screen; needs the extra ``test``.

PYTHONPATH=tests/support python docs/record_chat.py docs/chat.svg
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pseudo_terminal import PseudoTerminal, quiet
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 92, 37
LINES = ("Give me three tips for sleeping better.", "/stats", "Say that in one sentence.", "/why")


def drawn(terminal: PseudoTerminal, title: str, name: str) -> str:
    """The screen as SVG, in the fonts of the viewer; ``name`` sets its parts apart from those of other pictures."""
    console = Console(record=True, width=terminal.screen.columns, file=io.StringIO(), force_terminal=True)
    for y in range(terminal.screen.lines):
        line = Text()
        for x in range(terminal.screen.columns):
            cell = terminal.screen.buffer[y][x]
            style = " ".join(name for name, is_on in (("bold", cell.bold), ("italic", cell.italics)) if is_on)
            color = cell.fg if cell.fg in ("green", "brightgreen") else ""
            line.append(cell.data, f"{style} {color.removeprefix('bright')}".strip())
        line.rstrip()
        console.print(line)
    own_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title=title, code_format=own_fonts, unique_id=name)


def main(path: str) -> None:
    """Play it and write the picture."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "edge_spec", "chat", "smollm2", "--temp", "0", "-n", "150"]
        surroundings = quiet(os.environ, home)
        # What is done once per device is not part of the picture.
        first = [*command[:3], "run", "smollm2", "-p", "Hello", "-n", "1"]
        subprocess.run(first, env=surroundings, check=True, capture_output=True)
        terminal = PseudoTerminal(command, surroundings, columns=COLUMNS, rows=ROWS)
        for line in LINES:
            terminal.say(line)
        terminal.read(0.3)
        Path(path).write_text(drawn(terminal, "edge-spec chat", "chat"), "utf-8", newline="\n")
        terminal.type("/quit\r")
        terminal.end()


if __name__ == "__main__":
    main(sys.argv[1])
