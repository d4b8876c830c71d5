"""Laws of the examples: they run, and do what they show."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from chat_world import chat_model, chat_table

import edge_spec

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> Any:
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_model() -> edge_spec.TextModel:
    return chat_model(chat_table(end=1.0), n_ctx=4000)


# --- the asyncio service


def test_clients_of_the_service_take_turns_and_may_leave_at_any_time() -> None:
    model, service = small_model(), example("asyncio_service")
    # A seed that is drawn would make another text each time.
    draw = model.chat
    model.chat = lambda **options: draw(**options, seed=5)  # type: ignore[method-assign]
    conversation = model.chat(max_tokens=200)
    expected = [conversation.send(text).read() for text in ("abc", "dd")]

    async def talk(port: int) -> list[str]:
        lines, out = await asyncio.open_connection("127.0.0.1", port)
        answers = []
        for text in ("abc", "dd"):
            out.write(text.encode() + b"\n")
            answers.append((await lines.readline()).decode().removesuffix("\n"))
        out.close()
        await out.wait_closed()
        return answers

    async def leave(port: int) -> None:
        _, out = await asyncio.open_connection("127.0.0.1", port)
        out.write(b"abcdabcd\n")
        out.transport.abort()

    async def serve() -> list[list[str]]:
        served: list[asyncio.Task[None]] = []

        def accept(*client: Any) -> None:
            served.append(asyncio.ensure_future(service.serve_client(model, *client)))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            found = await asyncio.wait_for(asyncio.gather(talk(port), leave(port), talk(port), talk(port)), 60)
            await asyncio.wait_for(asyncio.gather(*served), 60)
        return [each for each in found if each is not None]

    assert asyncio.run(serve()) == [expected] * 3


# --- the desktop program


class Watched:
    """The thread of the desktop program, without a window."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("tkinter")
        monkeypatch.setattr(edge_spec, "load", lambda model, on_progress: small_model(), raising=False)
        self._events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.chat = example("desktop_chat").Chat("any", folder, lambda *event: self._events.put(event))
        self.chat.start()

    def until(self, name: str) -> list[tuple[Any, ...]]:
        """The events up to one of this name."""
        seen: list[tuple[Any, ...]] = []
        while not seen or seen[-1][0] != name:
            seen.append(self._events.get(timeout=30))
        return seen


def pieces(events: list[tuple[Any, ...]]) -> str:
    return "".join(event[1] for event in events if event[0] == "piece")


def test_the_desktop_program_stops_retries_and_continues_a_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Watched(tmp_path, monkeypatch)
    _, path, messages = program.until("opened")[-1]
    assert messages == []
    program.chat.send("abc")
    first = program.until("answered")
    assert ("progress", "reading") in {event[:2] for event in first}
    program.chat.retry()
    second = pieces(program.until("answered"))
    program.chat.open(None)
    assert program.until("opened")[-1][2] == []
    program.chat.send("   ")
    assert "empty" in program.until("failed")[-1][1]
    program.chat.open(path)
    events = program.until("opened")
    assert events[-1] == ("opened", path, [("user", "abc"), ("assistant", second)])
    assert not [event for event in events if event[0] == "notice"]
    program.chat.send("d")
    program.chat.quit()
    program.until("over")
    program.chat.join(30)
    assert not program.chat.is_alive()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("xvfb-run") is None, reason="needs Xvfb")
def test_the_window_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            "xvfb-run",
            "-a",
            sys.executable,
            str(EXAMPLES / "desktop_chat.py"),
            "demo",
            f"--folder={tmp_path}",
            "--say=Tell me a story.",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 50
    assert len([*tmp_path.glob("*.chat")]) == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("xvfb-run") is None, reason="needs Xvfb")
def test_the_window_leaves_where_it_cannot_answer(tmp_path: Path) -> None:
    window = [sys.executable, str(EXAMPLES / "desktop_chat.py"), "no-such.gguf", f"--folder={tmp_path}", "--say=Hello"]
    done = subprocess.run(["xvfb-run", "-a", *window], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no-such.gguf" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("xvfb-run") is None, reason="needs Xvfb")
def test_a_frozen_window_answers_in_an_empty_environment(tmp_path: Path) -> None:
    pytest.importorskip("PyInstaller")
    # PyInstaller does not look through an editable install.
    installed, root = tmp_path / "installed", EXAMPLES.parent
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(root)]
    subprocess.run(pip, check=True)
    frozen = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--onedir", "--name=chat", "--distpath=dist"]
    subprocess.run(
        [*frozen, str(EXAMPLES / "desktop_chat.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=True,
        capture_output=True,
    )
    shutil.move(tmp_path / "dist" / "chat", tmp_path / "elsewhere")
    shutil.rmtree(installed)
    done = subprocess.run(
        ["xvfb-run", "-a", str(tmp_path / "elsewhere" / "chat"), "demo", "--say=Tell me a story."],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 50
