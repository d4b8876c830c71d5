"""A split screen for a stand or a talk: the same model, the same prompt, without and with drafts.

    python examples/demo.py [MODEL] [--prompt TEXT] [--memory SIZE] [--tokens N] [--rounds N]

Two copies of the model write the same text. They take turns on this processor: the one whose own clock is behind goes
on, and only its own computing counts, so each side is as far as it would be alone. Tokens that a drafter had guessed
are green. Below are the bytes that each copy holds, against its budget. Ctrl-C ends it and says what it has shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from rich.console import Console, Group
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

import edge_spec

PROMPTS = (
    "Tell me a short story about a dog who is afraid of the rain.",
    "Can you help me find a hotel near the station for two nights?",
    "Why is the sky blue?",
)
DRAFTED = "bold green"
_FRAME = 4
"""Columns that a panel takes beside its text."""


@dataclass
class Side:
    """One copy of the model, and what it has written.

    Attributes:
        seconds: that it has computed.
    """

    title: str
    model: edge_spec.TextModel
    text: Text = field(default_factory=Text)
    seconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    events: Iterator[Any] = field(default_factory=lambda: iter(()))
    is_done: bool = True

    def ask(self, prompt: str, tokens: int) -> None:
        """Begin a reply."""
        self.text, self.seconds, self.tokens, self.rounds, self.is_done = Text(), 0.0, 0, 0, False
        self.events = iter(self.model.generate(prompt, max_tokens=tokens, seed=7).events())

    def step(self) -> None:
        """Take the next token, and its time."""
        start = perf_counter()
        event = next(self.events, None)
        self.seconds += perf_counter() - start
        if event is None:
            self.is_done = True
            return
        self.tokens += event.id is not None
        self.rounds = max(self.rounds, event.round)
        self.text.append(event.text, style=DRAFTED if event.drafted_by else "")

    def panel(self, height: int, width: int) -> Panel:
        """The end of the text, and how fast it is; ``width`` is that of a line of text."""
        speed = f"{self.tokens / self.seconds:.1f} tokens/s" if self.seconds else ""
        per_round = f", {self.tokens / self.rounds:.2f} tokens per round" if self.rounds else ""
        shown = self.text.copy()
        lines = shown.wrap(Console(width=width), width)
        return Panel(Text("\n").join(lines[-max(1, height) :]), title=self.title, subtitle=speed + per_round)


def budget(side: Side) -> Group:
    """Return who holds which bytes of a copy's budget."""
    ledger = side.model.ledger
    table = Table.grid(padding=(0, 1))
    total = ledger.budget_bytes or ledger.held_bytes
    held: dict[str, int] = {}
    for line in ledger:
        size = line.measured_bytes if line.measured_bytes is not None else line.predicted_bytes
        held[line.owner] = held.get(line.owner, 0) + size
    for owner, size in sorted(held.items(), key=lambda item: -item[1]):
        table.add_row(owner, f"{size / (1 << 20):,.1f} MiB", ProgressBar(total=total, completed=size, width=24))
    return Group(f"{ledger.held_bytes / (1 << 20):,.0f} of {total / (1 << 20):,.0f} MiB", table)


def screen(sides: list[Side], prompt: str, console: Console) -> Layout:
    """Everything that is seen."""
    layout, width = Layout(), max(10, console.width // len(sides) - _FRAME)
    layout.split_column(Layout(name="prompt", size=3), Layout(name="texts"), Layout(name="bytes", size=10))
    layout["prompt"].update(Panel(prompt))
    layout["texts"].split_row(*(Layout(side.panel(console.height - 17, width)) for side in sides))
    layout["bytes"].split_row(*(Layout(Panel(budget(side), title="memory")) for side in sides))
    return layout


def verdict(plain: Side, drafting: Side) -> str:
    """Return what a round has shown, as far as it has come."""
    if not plain.tokens or not drafting.tokens:
        return "no tokens were written, so there is nothing to compare"
    shorter, longer = sorted((plain.text.plain, drafting.text.plain), key=len)
    is_same = shorter == longer if plain.is_done and drafting.is_done else longer.startswith(shorter)
    ratio = (drafting.tokens / drafting.seconds) / (plain.tokens / plain.seconds)
    return f"with drafts {ratio:.2f} times as fast, {'the same text' if is_same else 'OTHER TEXT'}"


def play(sides: list[Side], asked: argparse.Namespace, console: Console) -> str:
    """Show prompt after prompt until there were enough, or Ctrl-C; returns what the last whole round has shown."""
    prompts, number, shown_last = asked.prompt or PROMPTS, 0, ""
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while not asked.rounds or number < asked.rounds:
            prompt = prompts[number % len(prompts)]
            number += 1
            for side in sides:
                side.ask(prompt, asked.tokens)
            shown = 0.0
            while not all(side.is_done for side in sides):
                min((side for side in sides if not side.is_done), key=lambda side: side.seconds).step()
                if perf_counter() - shown > 0.1:
                    live.update(screen(sides, prompt, console), refresh=True)
                    shown = perf_counter()
            live.update(screen(sides, prompt, console), refresh=True)
            shown_last = verdict(*sides)
    return shown_last or verdict(*sides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="path or name; the default of edge-spec if not given")
    parser.add_argument("--prompt", action="append", help="repeatable")
    parser.add_argument("--speculation", default="auto")
    parser.add_argument("--memory", help="budget of each copy, such as 1GiB")
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=0, help="end after N prompts; 0: only with Ctrl-C")
    asked = parser.parse_args()
    common = {"n_ctx": asked.ctx, "memory": asked.memory}
    with (
        edge_spec.load(asked.model, speculation="off", **common) as plain,
        edge_spec.load(asked.model, speculation=asked.speculation, **common) as drafting,
    ):
        sides = [Side("without drafts", plain), Side(f"with drafts ({drafting.mode})", drafting)]
        print(play(sides, asked, Console()))


if __name__ == "__main__":
    main()
