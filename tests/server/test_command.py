"""Laws of ``edge-spec serve`` as a process: it says where it is, answers as ``run`` does, and ends when told to."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.long

MAIN = [sys.executable, "-c", "from edge_spec.cli import main; main()"]
SAME = ["--threads", "1", "--ctx", "512", "--engine", "llama"]


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be sent Ctrl-C alone")
def test_it_answers_as_run_does_and_ctrl_c_ends_it(surroundings: dict[str, str]) -> None:
    command = [*MAIN, "serve", "demo", "--port", "0", *SAME, "--temperature", "0.6", "--name", "mine"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=surroundings) as serving:
        assert serving.stderr is not None
        try:
            line = next(line for line in serving.stderr if "http://" in line)
            found = re.search(r"mine at (http://127\.0\.0\.1:\d+)/v1 .* 512 tokens of context", line)
            assert found is not None, line
            asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "seed": 5, "max_tokens": 20}
            answer = httpx2.post(found[1] + "/v1/chat/completions", json=asked, timeout=60).json()
            run = [
                *MAIN,
                "run",
                "demo",
                *SAME,
                "--temperature",
                "0.6",
                "--seed",
                "5",
                "-n",
                "20",
                "-p",
                "Hello",
                "--json",
            ]
            own = json.loads(subprocess.run(run, capture_output=True, text=True, env=surroundings, timeout=60).stdout)
            assert answer["choices"][0]["message"]["content"] == own["text"]
            assert answer["system_fingerprint"] == own["profile"]["name"]
            with httpx2.stream(
                "POST",
                found[1] + "/v1/chat/completions",
                json={**asked, "max_tokens": 400, "ignore_eos": True, "stream": True},
                timeout=60,
            ) as stream:
                lines = stream.iter_lines()
                next(lines)
                serving.send_signal(signal.SIGINT)
                assert '"code":"stopping"' in [line for line in lines if line][-1]
            assert serving.wait(timeout=20) == 0
            assert "Traceback" not in serving.stderr.read()
        finally:
            serving.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_reads_the_address_can_end_it_at_once(number: int, surroundings: dict[str, str]) -> None:
    command = [*MAIN, "serve", "demo", "--port", "0"]
    for _ in range(3):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=surroundings) as serving:
            assert serving.stderr is not None
            while " at http://" not in (line := serving.stderr.readline()):
                assert line, "it ended"
            serving.send_signal(number)
            said = serving.stderr.read()
        assert (serving.returncode, said) == (0, "edge-spec: stopped\n")


def test_a_taken_port_is_told_before_a_model_is_loaded(surroundings: dict[str, str], served: Any) -> None:
    port = served.url.rpartition(":")[2]
    command = [*MAIN, "serve", "demo", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        f"edge-spec: error: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "choose another --port, or 0 for any free one\n"
    )


def test_an_address_of_another_computer_is_the_fault_of_the_host(surroundings: dict[str, str]) -> None:
    command = [*MAIN, "serve", "demo", "--host", "192.0.2.1", "--insecure", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("edge-spec: error: --host is '192.0.2.1': ")
    assert done.stderr.endswith("; give an address of this computer\n")
