"""Laws of threads that wait: they let other programs have the cores soon, unless the user has chosen otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_LOADED = "from edge_spec.llama_cpp.library import library; library(); import subprocess; subprocess.run(['env'])"
_NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


def shown(**chosen: str) -> str:
    """Return what GNU's library shows of its settings, and the environment of a program started afterwards."""
    environment = {name: value for name, value in os.environ.items() if name not in _NAMES}
    done = subprocess.run(
        [sys.executable, "-c", _LOADED],
        env=environment | {"OMP_DISPLAY_ENV": "verbose"} | chosen,
        capture_output=True,
        text=True,
        check=True,
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("llama.cpp is not built with GNU's OpenMP here")
    return done.stderr + done.stdout


def test_threads_wait_in_a_loop_for_a_short_time() -> None:
    said = shown()
    assert "GOMP_SPINCOUNT = '2000'" in said
    assert "GOMP_SPINCOUNT=" not in said, "programs that are started later are none of its business"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GOMP_SPINCOUNT", "77", "GOMP_SPINCOUNT = '77'"),
        ("OMP_WAIT_POLICY", "passive", "GOMP_SPINCOUNT = '0'"),
        ("OMP_WAIT_POLICY", "active", "GOMP_SPINCOUNT = '30000000000'"),
    ],
)
def test_what_the_user_has_chosen_stays(name: str, value: str, expected: str) -> None:
    said = shown(**{name: value})
    assert expected in said
    assert f"{name}={value}" in said
