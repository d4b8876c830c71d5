"""Whatever ends a chat, its conversation holds what was said: closed pipes, signals, files that cannot be written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import edge_spec
from edge_spec.chat import ChatSession

pytestmark = pytest.mark.long

CHAT = (sys.executable, "-m", "edge_spec", "chat", "demo", "--engine", "llama", "--ctx", "256", "--threads", "1")


def said(path: Path) -> list[tuple[str, str]]:
    """Return who said what in a saved conversation."""
    with edge_spec.load("demo", engine="llama", speculation="off", n_ctx=256, n_threads=1) as model:
        return [(message.role, message.content) for message in ChatSession.load(model, path).messages]


def started(*arguments: str) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*CHAT, *arguments], **pipes)


def test_a_reader_who_leaves_loses_no_turn(tmp_path: Path) -> None:
    path = tmp_path / "held.chat"
    with started("--session", str(path), "--seed", "3") as chat:
        assert chat.stdin is not None and chat.stdout is not None and chat.stderr is not None
        chat.stdin.write(b"Hello\nTell me a story\n")
        chat.stdin.close()
        assert chat.stdout.read(3)
        chat.stdout.close()
        assert b"could not be saved" not in chat.stderr.read()
        assert chat.wait() == 141
    assert [role for role, _ in said(path)][:1] == ["user"]
    assert all(text for role, text in said(path) if role == "user")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_keeps_what_was_written(name: str, tmp_path: Path) -> None:
    path = tmp_path / "held.chat"
    number = signal.Signals[name]
    with started("--session", str(path), "--seed", "3") as chat:
        assert chat.stdin is not None and chat.stdout is not None
        chat.stdin.write(b"Tell me a story\n")
        chat.stdin.flush()
        written = chat.stdout.read(20)
        chat.send_signal(number)
        written += chat.stdout.read()
        assert chat.wait() == 128 + number
    (_, asked), (_, answered) = said(path)
    assert asked == "Tell me a story"
    assert answered and written.decode().strip().startswith(answered.strip()[:20])


def test_a_conversation_that_cannot_be_saved_is_a_failure() -> None:
    if not Path("/proc/self").exists():
        pytest.skip("there is no folder in which nothing can be written")
    with started("--session", "/proc/held.chat", "-n", "4") as chat:
        out, error = chat.communicate(b"Hello\n", timeout=100)
    assert (chat.returncode, bool(out.strip())) == (1, True)
    assert error.decode().count("could not be saved in /proc/held.chat") == 1
    assert "/save" not in error.decode()
