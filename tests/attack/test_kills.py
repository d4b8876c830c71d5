"""The law of kills: nothing is lost but the turn in flight, and what comes next goes as if nothing had been."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from weekly import sizes

sys.path.insert(0, str(Path(__file__).parent))

from kills import KINDS, attack

pytestmark = pytest.mark.long


@pytest.mark.skipif(os.name != "posix", reason="no kill -9")
@pytest.mark.parametrize("n_kills", sizes(len(KINDS), weekly=200))
def test_kills_lose_nothing(n_kills: int) -> None:
    finds: list[str] = []
    ended, _ = attack(range(n_kills), 7200.0, finds.append)
    assert not finds
    assert min(ended[kind] for kind in KINDS) == n_kills // len(KINDS)
