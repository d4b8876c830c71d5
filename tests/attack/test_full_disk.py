"""A chat on a full disk: it says so, keeps what it can, and its exit code is not 0."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import edge_spec
from edge_spec.chat import ChatSession

pytestmark = pytest.mark.long

resource = pytest.importorskip("resource")

CHAT = (sys.executable, "-m", "edge_spec", "chat", "demo", "--engine", "llama", "--ctx", "256", "--threads", "1")
FULL = "could not be saved in {}: File too large"


def said(path: Path) -> list[str]:
    """Return what a person said in a saved conversation."""
    with edge_spec.load("demo", engine="llama", speculation="off", n_ctx=256, n_threads=1) as model:
        return [message.content for message in ChatSession.load(model, path).messages if message.role == "user"]


def only(most: int) -> Callable[[], None]:
    """Return what lets a process write no file beyond so many bytes, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def chat(
    path: Path, typed: str, temporary: Path, full: Callable[[], None] | None = None
) -> tuple[int, list[str], bytes]:
    """Run a chat in a pipe; returns its exit code, its notes about the disk, and its answers."""
    done = subprocess.run(
        [*CHAT, "-n", "4", "--seed", "1", "--session", str(path)],
        input=typed.encode(),
        capture_output=True,
        # A compiled module that the limit cuts short would break every later import of it.
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=100,
        preexec_fn=full,
    )
    lines = done.stderr.decode().splitlines()
    return (
        done.returncode,
        [line for line in lines if re.search("could not be saved|is in no file|conversation is in", line)],
        done.stdout,
    )


def test_a_full_disk_fails_and_loses_no_word_unsaid(tmp_path: Path) -> None:
    path = tmp_path / "held.chat"
    code, notes, out = chat(path, "Hello\nMore\n", tmp_path, only(64))
    assert (code, out.count(b"\n") > 1, path.exists()) == (1, True, False)
    assert notes == [
        f"edge-spec: note: the conversation {FULL.format(path)}",
        "edge-spec: note: what was said since the last save is in no file",
    ]


def test_what_was_saved_before_the_disk_was_full_stays(tmp_path: Path) -> None:
    path = tmp_path / "held.chat"
    assert chat(path, "Hello\n", tmp_path)[0] == 0
    before = path.read_bytes()
    code, notes, _ = chat(path, "More\n", tmp_path, only(64))
    assert (code, len(notes)) == (1, 2)
    assert path.read_bytes() == before
    assert said(path) == ["Hello"]
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["held.chat"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nothing can be written")
def test_what_cannot_be_saved_goes_where_there_is_room(tmp_path: Path) -> None:
    code, notes, _ = chat(Path("/proc/held.chat"), "Hello\nMore\n", tmp_path)
    (kept,) = tmp_path.glob("edge-spec-*/last.chat")
    assert code == 1
    assert notes[-1] == (f"edge-spec: note: the conversation is in {kept}, where files do not stay for long: move it")
    assert said(kept) == ["Hello", "More"]
    assert kept.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nothing can be written")
def test_at_a_terminal_it_is_a_failure_too(tmp_path: Path) -> None:
    pytest.importorskip("pexpect")
    from pseudo_terminal import PseudoTerminal, quiet

    surroundings = quiet(os.environ, str(tmp_path)) | {"TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    terminal = PseudoTerminal([*CHAT, "-n", "4", "--session", "/proc/held.chat"], surroundings, columns=200)
    terminal.say("Hello")
    terminal.type("\x04")
    assert terminal.end() == 1
    assert re.search("the conversation is in .*/last.chat, where files", terminal.text)
