"""Programs of users, written from the documents, do what they say with the demo; ``test_checkers`` has their types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import edge_spec

pytestmark = pytest.mark.long

TYPING = Path(__file__).parent / "typing"


def lines_of(name: str, argument: str, home: Path) -> list[str]:
    homes = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(home))
    command = [sys.executable, str(TYPING / f"{name}.py"), argument]
    done = subprocess.run(
        command, env={**os.environ, **homes}, capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_window_answers_stops_and_goes_on_with_its_conversation(tmp_path: Path) -> None:
    ready, answered, stopped, refused, seen = lines_of("window", str(tmp_path), tmp_path)
    assert ready.endswith("1 messages")
    assert answered.split()[1] in ("eos", "length")
    assert stopped.startswith("answered: cancelled after ")
    assert refused.startswith("error: ")
    assert {"answered", "piece", "progress", "saved"} <= {*seen.split()}
    again, *_ = lines_of("window", str(tmp_path), tmp_path)
    assert again.endswith("5 messages")


def test_openais_client_streams_calls_tools_and_hears_of_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    from edge_spec.server.running import ModelServer
    from edge_spec.server.settings import ServerSettings

    settings = ServerSettings(port=0, name="demo", log=lambda line: None)
    with edge_spec.load("demo", n_ctx=1024, n_threads=1) as model, ModelServer(model, settings) as server:
        lines = lines_of("client", f"{server.url}/v1", tmp_path)
    assert lines[0] == lines[1] and lines[0].startswith("usage: ")
    assert lines[2:4] == ["same: True", "called: clock True"]
    assert lines[4].removeprefix("after the tool: ") in ("stop", "length")
    assert lines[5].startswith("dog: ['name'] ") and "did you mean temperature?" in lines[5]
    assert lines[6:] == ["refused: model_not_found", "refused: context_length_exceeded messages"]
