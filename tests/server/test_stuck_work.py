"""Laws of work that does not end: it is ended for the one who asked for it, and nobody else waits for it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from server_world import wait_until, waiting

from edge_spec import TextModel
from edge_spec.server.jobs import JobMaker

pytestmark = pytest.mark.long

ASK = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 4}
STUCK = {**ASK, "grammar": 'root ::= "yes" | "no"'}


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What work waits for that does not end."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def hasty(serve: Callable[..., Any]) -> Any:
    """A server that allows little time."""
    return serve(timeout_s=2.0, name="stuck")


def told(served: Any, asked: dict[str, Any]) -> tuple[int, str]:
    """The status of an answer and the code of its error."""
    found = served.post(json=asked)
    return found.status_code, found.json().get("error", {}).get("code", "")


def test_a_grammar_that_takes_for_ever_to_prepare_keeps_nobody_waiting(
    hasty: Any, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = TextModel.requests

    def endless(model: TextModel, prompts: Any, **options: Any) -> Any:
        if options.get("grammar") is not None:
            gate.wait()
        return requests(model, prompts, **options)

    monkeypatch.setattr(TextModel, "requests", endless)
    assert told(hasty, STUCK) == (504, "timeout")
    assert told(hasty, ASK) == (200, "")
    gate.set()
    wait_until(lambda: told(hasty, STUCK) == (200, ""))
    wait_until(lambda: waiting(hasty) == (0, 0))


def test_a_request_that_takes_for_ever_to_read_keeps_nobody_waiting(
    hasty: Any, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = JobMaker.chat

    def endless(jobs: JobMaker, messages: Any, *given: Any, **more: Any) -> Any:
        if messages[0].get("name") == "stuck":
            gate.wait()
        return prepare(jobs, messages, *given, **more)

    monkeypatch.setattr(JobMaker, "chat", endless)
    stuck = {**ASK, "messages": [{**ASK["messages"][0], "name": "stuck"}]}  # type: ignore[index]
    assert told(hasty, stuck) == (504, "timeout")
    assert told(hasty, ASK) == (200, "")
    # Each keeps a processor busy: there are not many of them.
    assert told(hasty, stuck) == (504, "timeout")
    assert told(hasty, ASK) == (504, "timeout")
    gate.set()
    wait_until(lambda: told(hasty, ASK) == (200, ""))
    wait_until(lambda: waiting(hasty) == (0, 0))


STUBBORN = """
import asyncio
from edge_spec.cli import main
from edge_spec.server.service import Service

async def never(thread):
    print("asked to stop", flush=True)
    await asyncio.sleep(3600)

Service.close = never
main(["serve", "demo", "--engine", "llama", "--ctx", "256", "--threads", "1", "--port", "0"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be sent Ctrl-C alone")
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_server_that_does_not_stop(surroundings: dict[str, str], second: signal.Signals) -> None:
    command = [sys.executable, "-c", STUBBORN]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=surroundings) as serving:
        assert serving.stderr is not None and serving.stdout is not None
        try:
            url = next(found[0] for line in serving.stderr if (found := re.search(r"http://[\d.]+:\d+", line)))
            assert httpx2.get(url + "/health").status_code == 200
            serving.send_signal(signal.SIGTERM)
            assert serving.stdout.readline() == "asked to stop\n"
            assert serving.poll() is None
            serving.send_signal(second)
            assert serving.wait(timeout=20) == -second
        finally:
            serving.kill()
