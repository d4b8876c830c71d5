"""The law of all attacks: no input ends the process, hangs, takes memory beyond the budget, or brings a traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_CASES = {"gguf": 24, "head": 12, "onnx": 12, "session": 150, "template": 150, "grammar": 40, "schema": 30, "hub": 30}
_CASES |= {"http": 3, "command": 14, "family": 40}


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
@pytest.mark.parametrize("kind", _CASES)
def test_the_first_cases_of_each_attack_find_nothing(kind: str) -> None:
    # In a process of its own: forks of one in which other tests have run hold the memory of these from the beginning.
    campaign = [sys.executable, Path(__file__).with_name("campaign.py"), kind]
    found = subprocess.run(
        [*campaign, "--cases", str(_CASES[kind]), "--seconds", "600"], capture_output=True, text=True, check=False
    )
    assert not found.stderr
    ended = re.fullmatch(r"\d+ inputs: ({.*}); continue with --first \d+\n", found.stdout)
    assert ended, found.stdout
    assert ("'refused': " in ended[1] and "'done': " in ended[1]) or kind == "http"
