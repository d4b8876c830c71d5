"""What documents and help texts ask their readers to run: fenced blocks of Markdown, examples of ``--help``.

Only the standard library is used: ``.ci/run`` asks for the blocks that are marked for it before anything is installed.

    python3 tests/support/documents.py FOLDER    # writes each of them to a file there

A comment right before a block may say how it is treated::

    <!-- file: ~/.config/edge-spec/config.toml -->   it is written there, for the blocks after it
    <!-- run by .ci/run -->                          what only a fresh environment can show
    <!-- also run by .ci/run -->                     the tests run it, and so does that script
    <!-- not run: it takes a week -->                with the reason
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ALSO_BY_CI", "A_FILE", "BY_CI", "DOCUMENTS", "NOT_RUN", "ROOT", "RUN", "Block", "blocks_of", "examples_of"]

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

A_FILE, BY_CI, ALSO_BY_CI, NOT_RUN = "file: ", "run by .ci/run", "also run by .ci/run", "not run: "

RUN = ("sh", "console", "python")
"""What is run, as the fence names it: commands, commands with what they print, programs."""

_FENCE = re.compile(r"^(?:<!-- *(?P<marker>.*?) *-->\n+)?^```(?P<kind>.*)\n(?P<text>(?:.*\n)*?)^```$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Something to run.

    Attributes:
        place: where it stands, such as ``README.md:13``.
        kind: what stands behind the fence.
        text: without the fences.
        marker: the comment right before it; empty if there is none.
    """

    place: str
    kind: str
    text: str
    marker: str = ""

    @property
    def commands(self) -> str:
        """The commands for a shell that a block of commands consists of; of ``console`` without what they print."""
        if self.kind == "console":
            return "".join(f"{line}\n" for line in re.findall(r"^\$ (.+)$", self.text, re.MULTILINE))
        return self.text


def blocks_of(document: Path) -> list[Block]:
    """Return the fenced blocks of a document, in order."""
    text = document.read_text("utf-8")
    return [
        Block(
            place=f"{document.relative_to(ROOT).as_posix()}:{text.count(chr(10), 0, found.start('text')) + 1}",
            kind=found["kind"],
            text=found["text"],
            marker=found["marker"] or "",
        )
        for found in _FENCE.finditer(text)
    ]


def examples_of(name: str, text: str) -> Block | None:
    """Return the examples in a help text, or after ``Try:``; None if there are none."""
    if found := re.search(r"^ *Examples?:\n((?: {2,}\S.*\n)+)", text, re.MULTILINE):
        examples = [line.strip() for line in found[1].splitlines()]
    else:
        examples = re.findall(r"^ *Try: (.+)$", text, re.MULTILINE)
    return Block(place=f"{name} --help", kind="sh", text="\n".join(examples) + "\n") if examples else None


def _write(folder: Path) -> None:
    """Write the blocks that are left to ``.ci/run``, so that their names are in the order of the documents."""
    marked = [block for each in DOCUMENTS for block in blocks_of(each) if block.marker in (BY_CI, ALSO_BY_CI)]
    for number, block in enumerate(marked, 1):
        (folder / f"{number:02}.sh").write_text(f"# {block.place}\n{block.commands}", encoding="utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
