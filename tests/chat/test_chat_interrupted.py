"""Laws of a program that is killed: nothing is half written, and what was saved continues."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import edge_spec
from edge_spec.chat import ChatSession

N_TURNS = 12

TALK = """
import sys
from pathlib import Path
import edge_spec
from edge_spec.chat import ChatSession

path, cache, n_turns = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with edge_spec.load("demo", engine="llama", speculation="sequence", n_ctx=256, n_threads=1, cache_dir=cache) as model:
    if path.exists():
        session = ChatSession.load(model, path, on_notice=print)
    else:
        session = model.chat("Be kind.", seed=5, max_tokens=30)
    print("ready", flush=True)
    while session.n_turns < n_turns:
        session.send(f"What about {session.n_turns}?").read()
        session.save(path)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9")
@pytest.mark.parametrize("n_kills", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_a_killed_conversation_continues_with_the_same_words(n_kills: int, tmp_path: Path, probe_cache: Path) -> None:
    path, rng = tmp_path / "talk", random.Random(1)
    notices: list[str] = []

    n_turns = max(N_TURNS, n_kills)

    def command(file: Path) -> list[str]:
        return [sys.executable, "-c", TALK, str(file), str(probe_cache), str(n_turns)]

    subprocess.run(command(tmp_path / "whole"), check=True, stdout=subprocess.DEVNULL)
    for _ in range(n_kills):
        child = subprocess.Popen(command(path), stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == "ready":
                break
            notices.append(line)
        time.sleep(rng.uniform(0, 0.3))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    subprocess.run(command(path), check=True, stdout=subprocess.DEVNULL)

    def words(file: Path) -> Any:
        with edge_spec.load("demo", engine="llama", n_ctx=256, n_threads=1, cache_dir=probe_cache) as model:
            return ChatSession.load(model, file).messages

    assert words(path) == words(tmp_path / "whole")
    assert not notices
    # A process that dies while it writes leaves its unfinished file behind, and nobody reads it.
    assert all(file.name.startswith(".talk.") for file in tmp_path.iterdir() if file.name not in ("talk", "whole"))
