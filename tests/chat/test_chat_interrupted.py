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

pytestmark = pytest.mark.long

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

SEVERAL = """
import sys
from pathlib import Path
import edge_spec
from edge_spec.chat import ChatSession

folder, cache, n_turns, n_sessions = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with edge_spec.load("demo", engine="llama", speculation="sequence", n_ctx=256, n_threads=1, cache_dir=cache) as model:
    sessions = {}
    for number in range(n_sessions):
        path = folder / f"{number}.chat"
        if path.exists():
            sessions[path] = ChatSession.load(model, path, on_notice=print)
            print("continued", number, sessions[path].n_turns, flush=True)
        else:
            sessions[path] = model.chat("Be kind.", seed=number, max_tokens=20)
    print("ready", flush=True)
    # Every unfinished conversation writes its next turn, side by side.
    while live := {path: each for path, each in sessions.items() if each.n_turns < n_turns}:
        replies = {path: each.send(f"What about {each.n_turns}?") for path, each in live.items()}
        while replies:
            for path, reply in list(replies.items()):
                if next(reply, None) is None:
                    del replies[path]
                    sessions[path].save(path)
                    print("saved", path.stem, sessions[path].n_turns, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9")
@pytest.mark.parametrize("n_kills", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_of_conversations_side_by_side_a_kill_loses_the_turns_in_flight_at_most(
    n_kills: int, tmp_path: Path, probe_cache: Path
) -> None:
    """Each continues with at least the turns that it was told are saved, and ends with the words of a run that was
    never killed."""
    killed, whole, rng = tmp_path / "killed", tmp_path / "whole", random.Random(2)
    n_turns, n_sessions = max(4, n_kills // 2), 4

    def command(folder: Path) -> list[str]:
        folder.mkdir(exist_ok=True)
        return [sys.executable, "-c", SEVERAL, str(folder), str(probe_cache), str(n_turns), str(n_sessions)]

    saved = dict.fromkeys(range(n_sessions), 0)
    other: list[str] = []

    def follow(line: str) -> None:
        kind, *numbers = line.split()
        if kind == "continued":
            number, n_kept = map(int, numbers)
            assert n_kept >= saved[number], "a turn that was saved is lost"
        elif kind == "saved":
            number, n_kept = map(int, numbers)
            saved[number] = n_kept
        # So many turns as many kills need are more than the context holds.
        elif kind != "ready" and not line.startswith("the context is full: "):
            other.append(line)

    subprocess.run(command(whole), check=True, stdout=subprocess.DEVNULL)
    for _ in range(n_kills):
        with subprocess.Popen(command(killed), stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            # At any line, and anywhere between two: between two saves of one round, too.
            n_lines = rng.randrange(1, 3 * n_sessions)
            for line in child.stdout:
                follow(line)
                n_lines -= not line.startswith("continued")
                if n_lines == 0:
                    time.sleep(rng.uniform(0, 0.02))
                    child.send_signal(signal.SIGKILL)
    last = subprocess.run(command(killed), check=True, stdout=subprocess.PIPE, text=True)
    for line in last.stdout.splitlines():
        follow(line)

    def words(folder: Path) -> Any:
        with edge_spec.load("demo", engine="llama", n_ctx=256, n_threads=1, cache_dir=probe_cache) as model:
            return [ChatSession.load(model, folder / f"{number}.chat").messages for number in range(n_sessions)]

    assert saved == dict.fromkeys(range(n_sessions), n_turns)
    assert words(killed) == words(whole)
    assert not other


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
    others = {file.name for file in tmp_path.iterdir()} - {"talk", "whole"}
    assert all(name.startswith(".edge-spec-") and name.endswith(".part") for name in others), others
