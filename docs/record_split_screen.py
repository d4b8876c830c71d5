"""Plays examples/demo.py on an emulated terminal and draws it as a moving picture; needs the extra ``test``.

PYTHONPATH=tests/support python docs/record_split_screen.py docs/split-screen.svg
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pseudo_terminal import PseudoTerminal, quiet
from record_chat import drawn

COLUMNS, ROWS, FRAMES, FRAME_S, LAST_S = 96, 30, 12, 0.5, 4.0
PROMPT = "Give me three tips for sleeping better."
DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def recorded(terminal: PseudoTerminal) -> list[str]:
    """The screen as it changes, a picture each, until the program ends."""
    pictures: list[str] = []
    while terminal.process.isalive():
        terminal.read(0.1)
        if "tokens/s" in terminal.text:
            pictures.append(drawn(terminal, "python examples/demo.py smollm2", f"frame{len(pictures)}"))
    step = max(1, -(-len(pictures) // FRAMES))
    return [*pictures[:-1:step], pictures[-1]]


def moving(pictures: list[str]) -> str:
    """One picture that shows them one after the other, the last one longest, again and again."""
    total = FRAME_S * (len(pictures) - 1) + LAST_S
    rules, groups = [], []
    for number, picture in enumerate(pictures):
        head, inside = re.fullmatch(r"\s*(<svg[^>]*>)(.*)</svg>\s*", picture, re.DOTALL).groups()  # type: ignore[union-attr]
        begin = 100 * FRAME_S * number / total
        end = 100 * FRAME_S * (number + 1) / total if number + 1 < len(pictures) else 100
        hidden = "0% { visibility: hidden } " if number else ""
        again = f"{end:.3f}% {{ visibility: hidden }} 100% {{ visibility: hidden }}" if end < 100 else ""
        rules.append(f"@keyframes show{number} {{ {hidden}{begin:.3f}% {{ visibility: visible }} {again} }}")
        groups.append(f'<g style="animation: show{number} {total}s step-end infinite">{inside}</g>')
    return f"{head}<style>{' '.join(rules)}</style>{''.join(groups)}</svg>\n"


def main(path: str) -> None:
    """Play it and write the picture."""
    with tempfile.TemporaryDirectory() as home:
        surroundings = quiet(os.environ, home)
        # What is done once per device is not part of the picture.
        first = [sys.executable, "-m", "edge_spec", "run", "smollm2", "-p", "Hello", "-n", "1", "--ctx", "1024"]
        subprocess.run(first, env=surroundings, check=True, capture_output=True)
        asked = ("--rounds", "1", "--tokens", "120", "--memory", "450MiB", "--prompt", PROMPT)
        command = [sys.executable, str(DEMO), "smollm2", *asked]
        pictures = recorded(PseudoTerminal(command, surroundings, columns=COLUMNS, rows=ROWS))
    Path(path).write_text(moving(pictures), "utf-8", newline="\n")


if __name__ == "__main__":
    main(sys.argv[1])
