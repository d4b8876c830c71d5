"""The law of signals: whenever they come, the command ends by them, in order and without a word of Python's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from weekly import sizes

sys.path.insert(0, str(Path(__file__).parent))

from signals import attack

pytestmark = pytest.mark.long


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("n_signals", sizes(6, weekly=200))
def test_the_first_signals_find_nothing(n_signals: int) -> None:
    finds: list[str] = []
    ended, _ = attack(range(n_signals), 3600.0, finds.append)
    assert not finds
    assert min(ended["SIGINT"], ended["SIGTERM"]) > 0


def test_nothing_is_imported_before_the_command_listens() -> None:
    """Until then Ctrl-C is a traceback."""
    told = "before = set(sys.modules); import edge_spec.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", f"import sys; {told}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["edge_spec", "edge_spec.cli"]
