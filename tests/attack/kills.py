"""Kill the command at random moments of saving, transcribing and probing, pulling, and serving.

Nothing may be lost but the turn in flight, and what comes next must go as if nothing had been. Each case has a number,
which draws what is done and the moment; a find is printed as the command that tries it again.

    python tests/attack/kills.py --cases 200
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from fake_hub import fake_hub

import edge_spec
from edge_spec.chat import ChatSession
from edge_spec.errors import EdgeSpecError
from edge_spec.models import resolve_family

__all__ = ["KINDS", "attack"]

_SECONDS = 60.0
_COMMAND = (sys.executable, "-m", "edge_spec")
_SAME = ("--seed", "1", "--threads", "1", "--ctx", "256")
_QUESTIONS = tuple(f"What about {n}?" for n in range(6))


class Home:
    """A home that kills leave as it is, and what is known of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.whole: dict[str, Any] = {}

    def started(self, *arguments: str, **more: Any) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGE_SPEC_", "XDG_"))}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        env = kept | {
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "OMP_WAIT_POLICY": "passive",
        }
        return subprocess.Popen([*_COMMAND, *arguments], env=env, cwd=self.folder, **pipes)

    def killed(self, moment: float, *arguments: str, typed: bytes = b"") -> bytes:
        """Start a verb, kill it after so many seconds; returns what it wrote."""
        with tempfile.TemporaryFile() as stdin:
            stdin.write(typed)
            stdin.seek(0)
            process = self.started(*arguments, stdin=stdin)
            timer = threading.Timer(moment, process.kill)
            timer.start()
            out, _ = process.communicate()
            timer.cancel()
        return out

    def done(self, *arguments: str) -> bytes:
        """Run a verb that must go well."""
        out, error = self.started(*arguments).communicate(timeout=_SECONDS)
        if b"Traceback" in error or not out:
            raise AssertionError(f"{' '.join(arguments)}: {error.decode(errors='replace')}")
        return out

    def tokens(self, *arguments: str) -> Any:
        """Return the tokens of a reply."""
        return json.loads(self.done("run", "demo", *_SAME, "-n", "8", "-p", "Hello", "--json", *arguments))["token_ids"]

    def without(self, name: str) -> None:
        """Forget a folder, or a file."""
        with suppress(FileNotFoundError):
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _said(path: Path) -> list[str]:
    with edge_spec.load("demo", engine="llama", speculation="off", n_ctx=256, n_threads=1) as model:
        return [f"{message.role}: {message.content}" for message in ChatSession.load(model, path).messages]


def saving(home: Home, random: Random) -> None:
    """A chat in a pipe, saved after every turn and with its caches at the end."""
    chat = ("chat", "demo", *_SAME, "--engine", "llama", "-n", "8", "--session", "held.chat")
    typed = "\n".join(_QUESTIONS).encode()
    held = home.folder / "held.chat"
    if "talk" not in home.whole:
        home.without("held.chat")
        began = time.monotonic()
        home.killed(_SECONDS, *chat, typed=typed)
        home.whole["talk"] = _said(held), time.monotonic() - began
    whole, seconds = home.whole["talk"]
    home.without("held.chat")
    out = home.killed(random.uniform(0.3, 1.05) * seconds, *chat, typed=typed)
    saved = _said(held) if held.exists() else []
    n_answers = sum(answer.removeprefix("assistant: ").encode().strip() in out for answer in whole[1::2])
    assert saved == whole[: len(saved)], f"other words: {saved}"
    assert len(saved) >= 2 * (n_answers - 1), f"{n_answers} answers were read, and {len(saved) // 2} turns are kept"


def transcribing(home: Home, random: Random) -> None:
    """The first reply of a model: its weights are transcribed, its engine is probed."""
    engine = random.choice(["llama", "onnx"])
    name = f"tokens of {engine}"
    if name not in home.whole:
        home.without("cache")
        began = time.monotonic()
        home.whole[name] = home.tokens("--engine", engine), time.monotonic() - began
    whole, seconds = home.whole[name]
    home.without("cache")
    home.killed(random.uniform(0.2, 1) * seconds, "run", "demo", *_SAME, "--engine", engine, "-n", "8", "-p", "Hello")
    assert home.tokens("--engine", engine) == whole


def pulling(home: Home, random: Random) -> None:
    """A model comes from a hub."""
    content = resolve_family("demo").target.read_bytes()
    models = home.folder / "models"
    home.without("models")
    with fake_hub() as hub:
        hub.repositories = {"org/demo-GGUF": {"own-Q4_0.gguf": content}}
        os.environ["HF_ENDPOINT"] = hub.address
        pull = ("pull", "org/demo-GGUF", "--as", "own", "--ctx", "256", "--yes", "--model-dir", str(models))
        home.killed(random.uniform(0.2, 2.0), *pull)
        for path in models.glob("own/*.gguf"):
            assert path.read_bytes() == content, "half a model under its name"
        home.done(*pull)
    assert (models / "own" / "own-Q4_0.gguf").read_bytes() == content


def serving(home: Home, random: Random) -> None:
    """A server in the midst of an answer."""
    if "serving" not in home.whole:
        home.whole["serving"] = home.tokens()
    process = home.started("serve", "demo", "--port", "0", "--threads", "1")
    assert process.stderr is not None
    line = next((line for line in process.stderr if b"http://" in line), b"")
    address = "http://" + line.decode().partition("http://")[2].split("/v1")[0]
    asked = {"messages": [{"role": "user", "content": "Hello"}], "stream": True, "max_tokens": 500, "ignore_eos": True}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    timer = threading.Timer(random.uniform(0, 0.6), process.kill)
    timer.start()
    with suppress(OSError, HTTPException), urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        while answer.read(256):
            pass
    process.communicate(timeout=_SECONDS)
    assert home.tokens() == home.whole["serving"]


KINDS: dict[str, Callable[[Home, Random], None]] = {
    "saving": saving,
    "transcribing": transcribing,
    "pulling": pulling,
    "serving": serving,
}


def attack(numbers: range, seconds: float, told: Callable[[str], object]) -> tuple[Counter[str], int]:
    """Run cases until the time is over.

    Args:
        told: called with each find, a line.

    Returns:
        How many there were, by kind and as faults, and the number of the first one that was left.
    """
    ended: Counter[str] = Counter()
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place:
        home = Home(Path(place))
        for number in numbers:
            if time.monotonic() > until:
                return ended, number
            kind = [*KINDS][number % len(KINDS)]
            try:
                KINDS[kind](home, Random(number))
            except (AssertionError, EdgeSpecError, OSError, subprocess.TimeoutExpired) as fault:
                told(f"{kind}: {fault}: python tests/attack/kills.py --first {number} --cases 1")
                ended["fault"] += 1
            ended[kind] += 1
    return ended, numbers.stop


def main() -> int:
    """Attack as the command says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=3600.0)
    given = parser.parse_args()
    ended, left = attack(range(given.first, given.first + given.cases), given.seconds, print)
    print(f"{ended.total() - ended['fault']} kills: {dict(ended)}; continue with --first {left}")
    return int(bool(ended["fault"]))


if __name__ == "__main__":
    sys.exit(main())
