"""Laws of a program that is killed: nothing is half written, and what was saved goes on.

By default a few kills; a hundred with ``EDGE_SPEC_SLOW_TESTS=1``.
"""

from __future__ import annotations

import os
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

N_KILLS = 100 if os.environ.get("EDGE_SPEC_SLOW_TESTS") else 5
N_TURNS = 12

TALK = """
import sys
from pathlib import Path
import edge_spec
from edge_spec.chat import ChatSession

path, cache, mode, n_turns = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
with edge_spec.load("demo", engine="llama", speculation=mode, n_ctx=256, n_threads=1, cache_dir=cache) as model:
    if path.exists():
        talk = ChatSession.load(model, path, on_notice=print)
    else:
        talk = model.chat("Be kind.", seed=5, max_tokens=30)
    print("ready", flush=True)
    while talk.n_turns < n_turns:
        talk.send(f"What about {talk.n_turns}?").read()
        talk.save(path)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9")
@pytest.mark.parametrize("mode", ["sequence"])
def test_a_killed_talk_goes_on_with_the_same_words(mode: str, tmp_path: Path, probe_cache: Path) -> None:
    path, rng = tmp_path / "talk", random.Random(1)
    notices: list[str] = []

    n_turns = max(N_TURNS, N_KILLS)

    def command(file: Path) -> list[str]:
        return [sys.executable, "-c", TALK, str(file), str(probe_cache), mode, str(n_turns)]

    subprocess.run(command(tmp_path / "whole"), check=True, stdout=subprocess.DEVNULL)
    for _ in range(N_KILLS):
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
