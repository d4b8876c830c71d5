"""Output of verbs besides text: JSON, tables, notes, a progress bar, a line of statistics."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Container, Iterable, Sequence
from shutil import get_terminal_size
from textwrap import fill
from time import monotonic
from typing import TYPE_CHECKING, Any

from edge_spec.cli.printing import echo, one_line, safe_json
from edge_spec.cli.wording import in_options

if TYPE_CHECKING:
    from rich.console import Console

    from edge_spec.chat.chat_model import ChatModel
    from edge_spec.generation.replies import Replies
    from edge_spec.generation.reply import Reply
    from edge_spec.model import TextModel
    from edge_spec.speculation.drafters.base import Decision

__all__ = [
    "Bar",
    "decision_lines",
    "in_short",
    "print_json",
    "print_notes",
    "print_records",
    "print_summary",
    "print_summary_of_several",
    "print_table",
    "progress_console",
    "what_drafts",
]


def print_json(record: Any) -> None:
    """Print a JSON value on one line."""
    try:
        is_unicode = codecs.lookup(sys.stdout.encoding).name.startswith("utf")
    except (LookupError, TypeError, AttributeError):
        is_unicode = False
    echo(safe_json(json.dumps(record, ensure_ascii=not is_unicode)))


def in_short(n: int) -> str:
    """Return a number of weights as people say it: 134.5M, 4.0B."""
    return f"{n / 1e6:.1f}M" if n < 999.95e6 else f"{n / 1e9:,.1f}B"


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Container[int] = ()) -> None:
    """Print columns as wide as their widest cell; nothing is wrapped or cut.

    Args:
        titles: of the columns.
        rows: as many cells each.
        right: columns that are aligned on the right.
    """
    table = [titles, *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        echo("  ".join(cells).rstrip())


def print_records(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Container[int] = ()) -> None:
    """Print a table whose rows begin with a name; on a terminal too narrow for it, one row after the other.

    Args:
        titles, rows, right: see ``print_table``.
    """
    records = [[one_line(cell) for cell in row] for row in rows]
    columns = zip(titles, *records, strict=True)
    needed = sum(max(map(len, column)) for column in columns) + 2 * (len(titles) - 1)
    width = get_terminal_size().columns if sys.stdout.isatty() else 0
    if needed <= width or not width:
        print_table(titles, records, right=right)
        return
    for name, *cells in records:
        echo(name)
        line = ""
        for said in [f"{title}: {cell}" for title, cell in zip(titles[1:], cells, strict=True) if cell]:
            if line and len(line) + len(said) + 4 > width:
                echo(f"  {line}")
                line = ""
            line += f"; {said}" if line else said
        echo(fill(line, max(width, 20), initial_indent="  ", subsequent_indent="  "))


def print_notes(notes: tuple[str, ...], *, about: str = "") -> None:
    """Print the notes of a loaded model on standard error."""
    for note in notes:
        echo(f"edge-spec: note: {one_line(about + in_options(note))}", err=True)


def what_drafts(model: ChatModel) -> str:
    """Return the mode of a model, and the choices of ``auto``."""
    names = [name for name in model.choices if name != "off"]
    return f"auto ({', '.join(names)})" if names else model.mode


def print_summary(model: TextModel, reply: Reply) -> None:
    """Print tokens, speed, drafts, and the values that reproduce the text, on standard error."""
    statistics = reply.statistics
    if sys.stdout.isatty():
        # The text was printed just above.
        echo(err=True)
    echo(
        f"edge-spec: {statistics.tokens} tokens, {statistics.tokens_per_s:.1f} tokens/s; "
        f"speculation {what_drafts(model)}: {statistics.mean_length:.2f} tokens/round, "
        f"{statistics.accepted} of {statistics.drafted} drafts accepted; "
        f"seed {reply.settings.seed}, profile {model.profile.name}, {reply.identity}",
        err=True,
    )
    if model.decision is not None:
        for line in decision_lines(model.decision):
            echo(f"edge-spec: {line}", err=True)


def decision_lines(decision: Decision) -> list[str]:
    """Return the last decision of ``auto`` in milliseconds and gains, as docs/choosing.md explains."""
    most = min(len(decision.chances), len(decision.decodes_s) - 1)
    step = f"; a level {1e3 * decision.step_s:.4f}" if decision.step_s is not None else ""
    rows = {
        "last draft": f"{decision.drafter}, {decision.n_verified} of {len(decision.chances)} tokens verified"
        + (", as a trial" if decision.is_trial else "")
        + (f", for {decision.n_texts} texts" if decision.n_texts > 1 else ""),
        "R": f"{decision.rate:.2f} tokens/s",
        "c, ms": " ".join(f"{1e3 * seconds:.4f}" for seconds in decision.decodes_s[: most + 1]),
        "o, ms": f"{1e3 * decision.round_s:.4f}, and {1e3 * decision.token_s:.4f} for a further token",
        "p": " ".join(f"{chance:.4f}" for chance in decision.chances[:most]),
        "drafting, ms": f"{1e3 * decision.drafting_s:.4f}{step}",
        "gain": " ".join(f"{decision.gain(n):.3f}" for n in range(most + 1)) + " with 0, 1, 2 ... tokens verified",
    }
    return [f"{name:14}{text}" for name, text in rows.items()]


def print_summary_of_several(model: TextModel, replies: Replies, seconds: float) -> None:
    """Print a summary of several answers and of their seconds, prompt included."""
    n_tokens = sum(len(answer.token_ids) for answer in replies.answers)
    echo(
        f"edge-spec: {len(replies)} answers, {n_tokens} tokens in {seconds:.1f} s, {n_tokens / seconds:.1f} tokens/s; "
        f"seed {replies[0].settings.seed}, attempts 0 to {len(replies) - 1}, "
        f"profile {model.profile.name}, {model.identity}",
        err=True,
    )


def progress_console() -> Console:
    """Standard error for progress bars."""
    from rich.console import Console

    class Steady(Console):
        """Leaves the cursor visible: Ctrl-C ends the process at once, which would leave it hidden."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    return Steady(stderr=True)


class Bar:
    """Shows a progress bar when called with a stage, the amount done and the total, until they are equal.

    Nothing is shown for short stages, nor if standard error is not a terminal, or one that cannot move its
    cursor.

    Args:
        after_s: seconds that a stage lasts before it gets a bar.
    """

    def __init__(self, after_s: float = 0.5) -> None:
        self._after_s = after_s
        self._stage = ""
        self._began = 0.0
        self._shown: Any = None
        self._task: Any = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self.close()
            self._stage, self._began = stage, monotonic()
        if self._shown is None and done < total and monotonic() - self._began >= self._after_s:
            self._show(stage, total)
        # Ctrl-C closes it in another thread.
        shown = self._shown
        if shown is not None:
            shown.update(self._task, completed=done)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Remove the bar."""
        self._stage = ""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.stop()

    def _show(self, stage: str, total: int) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        console = progress_console()
        # Prompts and calibration count tokens, quantizing counts tensors, files count bytes.
        amount = MofNCompleteColumn() if stage in ("reading", "quantizing", "calibrating") else DownloadColumn()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), amount, TimeRemainingColumn())
        hidden = not console.is_terminal or console.is_dumb_terminal
        self._shown = Progress(*columns, console=console, transient=True, disable=hidden)
        self._task = self._shown.add_task(one_line(_STAGES.get(stage, stage)), total=total)
        self._shown.start()


_STAGES = {"reading": "reading the prompt"}
