"""Laws of several models behind one address, in a process of their own: their budgets fit one that holds little."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

LAWS = Path(__file__).with_name("several_models.py")


def test_laws_of_several_models_hold_in_a_process_that_holds_little() -> None:
    given = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(LAWS)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(given, env=own, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
