"""Laws of the split screen: both sides write the same text, and it ends by itself where it is told to."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module."""
    spec = spec_from_file_location("demo_screen", DEMO)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where its dataclass looks for its types
    spec.loader.exec_module(module)
    return module


class Ledger(list[Any]):
    budget_bytes = held_bytes = 1 << 20


def side(demo: ModuleType, n_tokens: int, *, interrupted: bool = False) -> Any:
    """A model that writes words."""

    def events() -> Iterator[Any]:
        for number in range(n_tokens):
            yield SimpleNamespace(id=number, round=number + 1, text=f"word{number} ", drafted_by="")
        if interrupted:
            raise KeyboardInterrupt

    reply = SimpleNamespace(events=events)
    return demo.Side("a title", SimpleNamespace(generate=lambda *asked, **more: reply, ledger=Ledger()))


def shown(demo: ModuleType, sides: list[Any], *, rounds: int, width: int = 80) -> tuple[str, str]:
    """Return what is drawn, and the verdict."""
    out = StringIO()
    asked = argparse.Namespace(prompt=None, rounds=rounds, tokens=40)
    verdict = demo.play(sides, asked, Console(file=out, width=width, height=40))
    return out.getvalue(), verdict


def test_ctrl_c_ends_it_with_what_was_shown(demo: ModuleType) -> None:
    sides = [side(demo, 12, interrupted=True), side(demo, 12, interrupted=True)]
    _, verdict = shown(demo, sides, rounds=0)
    assert verdict.startswith("with drafts ") and verdict.endswith(" times as fast, the same text")


def test_an_empty_reply_is_no_comparison(demo: ModuleType) -> None:
    assert shown(demo, [side(demo, 0), side(demo, 0)], rounds=1)[1].startswith("no tokens were written")


def test_other_texts_are_told(demo: ModuleType) -> None:
    assert shown(demo, [side(demo, 12), side(demo, 11)], rounds=1)[1].endswith("OTHER TEXT")


@pytest.mark.parametrize("width", [50, 80, 140])
def test_the_screen_is_as_wide_as_the_terminal(width: int, demo: ModuleType) -> None:
    drawn, _ = shown(demo, [side(demo, 30), side(demo, 30)], rounds=1, width=width)
    assert max(map(len, drawn.splitlines())) == width
    for number in range(30):
        assert drawn.count(f"word{number} ") == 2


@pytest.mark.slow
def test_both_sides_write_the_same_text(surroundings: dict[str, str]) -> None:
    asked = [sys.executable, str(DEMO), "demo", "--rounds", "1", "--tokens", "24", "--memory", "300MiB", "--ctx", "256"]
    done = subprocess.run(asked, capture_output=True, text=True, env=surroundings, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "without drafts" in done.stdout and "with drafts (hierarchy)" in done.stdout
    assert done.stdout.rstrip().endswith("times as fast, the same text")
