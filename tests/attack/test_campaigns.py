"""The law of all attacks: no input ends the process, hangs, takes memory beyond the budget, or brings a traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import campaign
from beside import require_short_delays
from forked import forked
from kinds import Kind
from renamed_models import N_RENAMED
from weekly import sizes

pytestmark = pytest.mark.long

_CASES = {"gguf": 12, "head": 6, "onnx": 6, "session": 60, "template": 60, "grammar": 20, "schema": 20, "hub": 15}
_CASES |= {"http": 1, "command": 7, "family": 16, "architecture": 8, "nested": 30, "tokenizer": 6, "numbers": 1}
_CASES |= {"published head": 8, "heavy": 1, "two chats": 8, "two loads": 1}
_ALL_DONE = {"http", "numbers", "heavy", "two chats", "two loads"}
"""What answers whatever it is asked, and whose answers are looked at."""
_ALL_REFUSED = {"architecture"}
"""Few families run under another name, none of them among the first."""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
@pytest.mark.parametrize("times", sizes(1, weekly=10))
@pytest.mark.parametrize("kind", _CASES)
def test_the_first_cases_of_each_attack_find_nothing(kind: str, times: int) -> None:
    # In a process of its own: forks of one in which other tests have run hold the memory of these from the beginning.
    campaign = [sys.executable, Path(__file__).with_name("campaign.py"), kind]
    found = subprocess.run(
        [*campaign, "--cases", str(times * _CASES[kind]), "--seconds", "600"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not found.stderr
    ended = re.fullmatch(r"\d+ inputs: ({.*}); continue with --first \d+\n", found.stdout)
    assert ended, found.stdout
    assert "'refused': " in ended[1] or kind in _ALL_DONE
    assert "'done': " in ended[1] or kind in _ALL_REFUSED


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_no_family_under_the_name_of_another_architecture_ends_the_process() -> None:
    lines: list[str] = []
    ended, _ = campaign.attack("architecture", range(N_RENAMED), float("inf"), lines.append)
    assert not lines
    assert ended.total() == N_RENAMED and ended["done"]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_an_assertion_without_a_message_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(number: int, _: Path) -> Callable[[], object]:
        def work() -> None:
            if number % 2 == 0:
                raise AssertionError

        return work

    monkeypatch.setitem(campaign.KINDS, "odd", Kind(odd, at_once=3))
    lines: list[str] = []
    ended, left = campaign.attack("odd", range(1, 4), 600.0, lines.append)
    assert ended == {"fault": 1}
    assert left == 4
    assert lines[0].startswith(f'a traceback: AssertionError ("{__file__}", line ')
    assert lines[0].endswith(", in work): python tests/attack/campaign.py odd --first 2 --cases 1")
    assert "    Traceback (most recent call last):" in lines


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_a_loop_without_an_end_is_ended_by_what_it_computes() -> None:
    def work() -> None:
        while True:
            pass

    outcome = forked(work, seconds=3600.0, computing_s=1)
    assert outcome.fault(most_bytes=1 << 40) == "ended by SIGXCPU"


def test_a_client_who_waits_for_the_preparation_of_another_is_found() -> None:
    turn = threading.Lock()

    def prepare(seconds: float) -> None:
        with turn:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass

    def ask() -> None:
        time.sleep(0.01)
        with turn:
            pass

    require_short_delays(ask, lambda: prepare(0.05), "a light request")
    with pytest.raises(AssertionError, match=r"another client waited .* beside a heavy request"):
        require_short_delays(ask, lambda: prepare(0.8), "a heavy request")
