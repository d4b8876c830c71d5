"""The law of all attacks: no input ends the process, hangs, takes memory beyond the budget, or brings a traceback."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from campaign import attack
from kinds import KINDS

CASES = {"gguf": 24, "head": 12, "onnx": 12, "session": 150, "template": 150, "grammar": 40, "schema": 30, "hub": 30}
CASES["http"] = 3


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_cases_of_each_attack_find_nothing(kind: str) -> None:
    finds: list[str] = []
    ended, _ = attack(kind, range(CASES[kind]), 600.0, finds.append)
    assert not finds
    assert kind == "http" or min(ended["done"], ended["refused"]) > 0
