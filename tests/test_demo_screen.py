"""Laws of the split screen: both sides write the same text, and it ends by itself where it is told to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


@pytest.mark.slow
def test_both_sides_write_the_same_text(surroundings: dict[str, str]) -> None:
    asked = [sys.executable, str(DEMO), "demo", "--rounds", "1", "--tokens", "24", "--memory", "300MiB", "--ctx", "256"]
    done = subprocess.run(asked, capture_output=True, text=True, env=surroundings, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "without drafts" in done.stdout and "with drafts (hierarchy)" in done.stdout
    assert done.stdout.rstrip().endswith("times as fast, the same text")
