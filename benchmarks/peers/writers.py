"""Programs that write a reply to token ids: ours, llama.cpp's server, OpenVINO GenAI."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import edge_spec

__all__ = ["LlamaServer", "OpenVino", "Ours", "Task", "Writer", "Written"]

_STARTED_S = 120


@dataclass(frozen=True)
class Task:
    """A reply to write: to the token ids of a prompt, of exactly so many tokens."""

    text: str
    prompt: Sequence[int]
    n_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class Written:
    """Tokens per second without reading the prompt, and tokens per decode of the target; 0 where that is not told."""

    tokens_per_s: float
    mean_length: float


class Writer(Protocol):
    """A program that is open."""

    def write(self, task: Task) -> Written:
        """Write a reply."""

    def close(self) -> None:
        """End the program."""


class Ours:
    """edge-spec in one of its modes; further arguments are those of ``load``."""

    def __init__(self, model: str, **load: Any) -> None:
        self._model = edge_spec.load(model, **load)

    def prompt(self, text: str) -> list[int]:
        """The token ids of a prompt under the model's chat template."""
        return list(self._model.generate(text, max_tokens=1).prompt)

    def write(self, task: Task) -> Written:
        reply = self._model.generate(
            task.text,
            max_tokens=task.n_tokens,
            temperature=task.temperature,
            seed=task.seed,
            ignore_eos=True,
            # The others penalize nothing either, whatever is recommended for the model.
            repeat_penalty=1,
            dry_multiplier=0,
        )
        reply.read()
        if list(reply.prompt) != list(task.prompt):
            raise ValueError("the chat template gives another prompt")
        return Written(reply.statistics.tokens_per_s, reply.statistics.mean_length)

    def close(self) -> None:
        self._model.close()


class LlamaServer:
    """llama.cpp's own server with one slot; ``options`` choose its drafter.

    Raises:
        RuntimeError: it did not start; the message is the end of its log.
    """

    def __init__(self, program: Path, model: Path, *, n_threads: int, n_ctx: int, options: Sequence[str] = ()) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._address = f"http://127.0.0.1:{port}"
        threads = ["-t", str(n_threads), "-tb", str(n_threads)]
        usual = ["-np", "1", "--no-webui", "--host", "127.0.0.1", "--port", str(port), "-c", str(n_ctx)]
        self._process = subprocess.Popen(
            [str(program), "-m", str(model), *threads, *usual, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._await_start()

    def _await_start(self) -> None:
        until = time.monotonic() + _STARTED_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self._address}/health", timeout=5) as found:
                    if found.status == 200:
                        self._drain()
                        return
            except OSError:
                time.sleep(0.1)
        self._process.kill()
        said = self._process.stdout.read() if self._process.stdout is not None else ""
        raise RuntimeError(said.strip()[-300:] or "it did not start")

    def _drain(self) -> None:
        """Its log is not needed any more, and must not fill the pipe."""
        self._log = subprocess.Popen(["cat"], stdin=self._process.stdout, stdout=subprocess.DEVNULL)

    def write(self, task: Task) -> Written:
        asked = {
            "prompt": list(task.prompt),
            "n_predict": task.n_tokens,
            "temperature": task.temperature,
            "seed": task.seed,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        request = urllib.request.Request(
            f"{self._address}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as found:
            timings = json.load(found)["timings"]
        accepted, n = timings.get("draft_n_accepted", 0), timings["predicted_n"]
        return Written(timings["predicted_per_second"], n / (n - accepted))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.wait()


class OpenVino:
    """OpenVINO GenAI in a process of its own, since it brings libraries of its own.

    Args:
        python: of an environment with openvino-genai.

    Raises:
        RuntimeError: it cannot load the file; the message is its last line.
    """

    def __init__(self, python: Path, model: Path, *, n_threads: int) -> None:
        worker = Path(__file__).with_name("openvino_worker.py")
        self._process = subprocess.Popen(
            [str(python), str(worker), str(model), str(n_threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            if line.startswith('{"ready"') or line.startswith('{"tokens_per_s"'):
                return dict(json.loads(line))
            said = line
        raise RuntimeError(said.strip() or "it has ended")

    def write(self, task: Task) -> Written:
        assert self._process.stdin is not None
        asked = {"prompt": list(task.prompt), "n_tokens": task.n_tokens, "temperature": task.temperature}
        self._process.stdin.write(json.dumps({**asked, "seed": task.seed}) + "\n")
        self._process.stdin.flush()
        return Written(self._answer()["tokens_per_s"], 1.0)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
