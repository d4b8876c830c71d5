"""Tokens per second of a server whose clients ask side by side: ours, and llama.cpp's own on the same file.

    python benchmarks/side_by_side.py [MODEL] [--llama-server PATH] [--requests 1,2,4,8,16,32] [--rounds 3]

``peers/build.py`` builds llama-server from the source package that edge-spec depends on. Each server runs in a process
of its own, one after the other: ours as it comes, ours with plain decoding (``--speculation off``), llama.cpp's with 16
slots and one or two threads (the better one counts). The load comes from this process, over connections that stay
open; replies are streamed only with ``--streams``, and tokens are counted by ``usage``. It is the same for all:
completions of different short prompts, of so many tokens, whatever they are. A round sends all requests at once and
ends with the last reply; the first round is not counted. Printed are medians over the rounds. For ours the share of
the time that prompts take is printed as well, by ``/metrics``, and how much of the bound is reached once they are read:
of as many rows of one text per decode as there are requests, whose time is measured here before the server starts and
after it has ended.

With ``--first`` it is something else: seconds until a short request has its first token (a reply of one token), alone,
and while another client's answer of 500 tokens is being written and a third one's prompt of 1,500 tokens is read.
With ``--shared`` eight conversations begin at once with one system prompt of some 1,000 tokens: printed are their
prompts' tokens, how many of these were computed, and how many cells several texts held together, by ``/metrics``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from several_texts import Decodes

import edge_spec
from edge_spec.engines.onnx.kernels import available
from edge_spec.models import resolve

_PORT = 18973
_SLOTS = 16
_SHARING = 8
_PROMPT_S, _PROMPT_ROWS = "prompt_seconds_total", 'rows_total{purpose="prompt"}'
_START_S = 120.0


class Connection:
    """A connection to a server, for one request after the other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._is_over = False

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Return what a server answers."""
        content = json.dumps(body).encode() if body is not None else b""
        method = "POST" if body is not None else "GET"
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        reader = await self._opened()
        status = await self._sent(request)
        if not status:
            # A server closes a connection that was idle for some seconds.
            self._is_over = True
            reader = await self._opened()
            status = await self._sent(request)
        length, is_chunked = 0, False
        while (line := await reader.readline()).strip():
            name, _, value = line.decode().lower().partition(":")
            length = int(value) if name == "content-length" else length
            is_chunked |= name == "transfer-encoding" and "chunked" in value
            self._is_over |= name == "connection" and "close" in value
        found = await self._chunks(reader) if is_chunked else await reader.readexactly(length)
        if b" 200 " not in status:
            raise SystemExit(f"{path}: {status.decode().strip()}: {found[:300].decode(errors='replace')}")
        return found

    async def _opened(self) -> asyncio.StreamReader:
        if self._reader is None or self._is_over:
            self.close()
            self._is_over = False
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self._reader

    async def _sent(self, request: bytes) -> bytes:
        """Send a request; returns the line that begins the answer, nothing if the connection was closed before."""
        assert self._reader is not None and self._writer is not None
        with suppress(ConnectionError):
            self._writer.write(request)
            return await self._reader.readline()
        return b""

    @staticmethod
    async def _chunks(reader: asyncio.StreamReader) -> bytes:
        found = b""
        while n := int(await reader.readline(), 16):
            found += (await reader.readexactly(n + 2))[:-2]
        await reader.readline()
        return found

    def close(self) -> None:
        """Close it."""
        if self._writer is not None:
            self._writer.close()


@dataclass
class Server:
    """A server in a process of its own."""

    name: str
    command: list[str]
    metrics: bool
    environment: Mapping[str, str] = field(default_factory=dict)

    def __enter__(self) -> Server:
        self._log = tempfile.TemporaryFile()
        environment = {**os.environ, **self.environment}
        self._process = subprocess.Popen(self.command, stdout=self._log, stderr=self._log, env=environment)
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(OSError, SystemExit, asyncio.IncompleteReadError):
                asyncio.run(Connection(_PORT).ask("/health"))
                return self
            time.sleep(0.2)
        self._log.seek(0)
        self.__exit__()
        raise SystemExit(f"{self.name} does not start")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()

    async def told(self, connection: Connection, name: str) -> float:
        """Return a number of ``/metrics``; 0 where there is none."""
        if not self.metrics:
            return 0.0
        lines = (await connection.ask("/metrics")).decode().splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith(f"edge_spec_{name} ")), 0.0)


def _body(number: int, n_tokens: int, temperature: float, prompt: str = "") -> dict[str, Any]:
    prompt = prompt or f"{number}. A small harbour town has {number + 2} things that a visitor should see:"
    asked = {"prompt": prompt, "max_tokens": n_tokens, "temperature": temperature, "seed": number, "ignore_eos": True}
    # Both apply the same filters, and neither the penalties that come with a model.
    return asked | {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "dry_multiplier": 0.0, "repeat_penalty": 1.0}


class Speed(NamedTuple):
    """What requests at once brought: tokens per second, the share of the time that prompts took, and tokens per second
    once they were read."""

    speed: float
    reading: float
    written: float


def _n_tokens(reply: bytes) -> int:
    """Return how many tokens a reply has, streamed or not."""
    if not reply.startswith(b"data:"):
        return int(json.loads(reply)["usage"]["completion_tokens"])
    chunks = [json.loads(line[5:]) for line in reply.splitlines() if line.startswith(b"data: {")]
    return int(next(chunk["usage"]["completion_tokens"] for chunk in reversed(chunks) if chunk.get("usage")))


async def _together(server: Server, n: int, asked: argparse.Namespace, temperature: float) -> Speed:
    connections = [Connection(_PORT) for _ in range(n)]
    found = []
    streams = {"stream": True, "stream_options": {"include_usage": True}} if asked.streams else {}
    for round_number in range(asked.rounds + 1):
        bodies = [_body(round_number * 1000 + number, asked.tokens, temperature) | streams for number in range(n)]
        before = await server.told(connections[0], _PROMPT_S)
        begun = time.perf_counter()
        replies = await asyncio.gather(
            *(connection.ask("/v1/completions", body) for connection, body in zip(connections, bodies, strict=True))
        )
        spent = time.perf_counter() - begun
        reading = await server.told(connections[0], _PROMPT_S) - before
        n_tokens = sum(map(_n_tokens, replies))
        if n_tokens != n * asked.tokens:
            raise SystemExit(f"{server.name} wrote {n_tokens} tokens, not {n * asked.tokens}")
        if round_number:
            found.append((n_tokens / spent, reading / spent, n_tokens / (spent - reading)))
    for connection in connections:
        connection.close()
    return Speed(*map(median, zip(*found, strict=True)))


def _bounds(sizes: list[int], asked: argparse.Namespace) -> list[float]:
    """Return the seconds of a decode of so many rows of one text, halfway through a reply."""
    with edge_spec.load(asked.model, engine="onnx", speculation="off", n_ctx=2048) as model:
        target = model.followed["target"].model
        decodes = Decodes(model, target, 20 + asked.tokens // 2)
        seconds = [median(decodes.seconds(n) for _ in range(3)) for n in sizes]
        decodes.close()
    return seconds


async def _first(server: Server, asked: argparse.Namespace) -> tuple[float, float]:
    """Return seconds to the first token of a short request: alone, and beside a long answer and a long prompt."""
    connections = [Connection(_PORT) for _ in range(3)]
    alone, beside = [], []
    for number in range(asked.rounds + 1):
        spent = []
        for is_beside in (False, True):
            others = []
            if is_beside:
                # Nothing that a server may have kept of an earlier prompt helps. In SmolLM2's tokens it is some 1,500.
                prompt = " ".join(f"{number} {place}" for place in range(262))
                others = [asyncio.ensure_future(connections[1].ask("/v1/completions", _body(number, 500, 0.8)))]
                await asyncio.sleep(0.3)
                long = _body(number, 8, 0.8, prompt)
                others.append(asyncio.ensure_future(connections[2].ask("/v1/completions", long)))
                await asyncio.sleep(0.05)
            begun = time.perf_counter()
            short = _body(number * 10 + is_beside, 1, 0.8, f"Question {number * 2 + is_beside}: what is the sea?")
            await connections[0].ask("/v1/completions", short)
            spent.append(time.perf_counter() - begun)
            if any(other.done() for other in others):
                raise SystemExit(f"{server.name} had ended another one by then")
            await asyncio.gather(*others)
        if number:
            alone.append(spent[0])
            beside.append(spent[1])
    for connection in connections:
        connection.close()
    return median(alone), median(beside)


async def _shared(server: Server, asked: argparse.Namespace) -> str:
    """Return what becomes of one system prompt of several conversations."""
    watching, *connections = [Connection(_PORT) for _ in range(_SHARING + 1)]
    system = " ".join(f"Rule {number}: be kind to visitor {number}." for number in range(90))
    bodies = []
    for number in range(_SHARING):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"What is rule {number}?"}]
        bodies.append({"messages": messages, "max_tokens": asked.tokens, "seed": number, "ignore_eos": True})
    before = await server.told(watching, _PROMPT_ROWS)
    held = await server.told(watching, 'cells{state="all"}') - await server.told(watching, 'cells{state="free"}')
    asking = [
        asyncio.ensure_future(connection.ask("/v1/chat/completions", body))
        for connection, body in zip(connections, bodies, strict=True)
    ]
    shared = most = 0.0
    while not all(each.done() for each in asking):
        shared = max(shared, await server.told(watching, 'cells{state="shared"}'))
        now = await server.told(watching, 'cells{state="all"}') - await server.told(watching, 'cells{state="free"}')
        most = max(most, now - held)
        await asyncio.sleep(0.02)
    usage = [json.loads(await each)["usage"] for each in asking]
    n_read = await server.told(watching, _PROMPT_ROWS) - before
    for connection in (watching, *connections):
        connection.close()
    n_tokens = sum(each["prompt_tokens"] + each["completion_tokens"] for each in usage)
    n_prompts = sum(each["prompt_tokens"] for each in usage)
    return (
        f"{_SHARING} prompts of {n_prompts} tokens, {n_read:.0f} of them computed; {n_tokens} tokens of texts in "
        f"{most:.0f} cells, {shared:.0f} of them shared"
    )


def _servers(asked: argparse.Namespace) -> list[Server]:
    ours = [sys.executable, "-m", "edge_spec", "serve", asked.model, "--port", str(_PORT), "--engine", "onnx"]
    ours += ["--ctx", "2048"]
    servers = [Server("ours, plain", [*ours, "--speculation", "off"], metrics=True)]
    if not asked.plain:
        servers.append(Server("ours", [*ours, *asked.draft], metrics=True))
    if asked.llama_server:
        path = str(resolve(asked.model))
        slots = ["-np", str(_SLOTS), "-c", str(_SLOTS * 2048), "--no-webui", "--port", str(_PORT)]
        for threads in ("1", "2"):
            command = [asked.llama_server, "-m", path, "-t", threads, "-tb", "2", *slots]
            servers.append(Server(f"llama-server -t {threads}", command, metrics=False))
    return [each for each in servers if asked.only in each.name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--llama-server", default="")
    parser.add_argument("--requests", default="1,2,4,8,16,32", help="how many at once")
    parser.add_argument("--tokens", type=int, default=64, help="of each reply")
    parser.add_argument("--temperatures", default="0,0.8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", action="store_true", help="measure the first token of a short request")
    parser.add_argument("--shared", action="store_true", help="let conversations share a system prompt")
    parser.add_argument("--streams", action="store_true", help="let replies be streamed")
    parser.add_argument("--plain", action="store_true", help="ours with plain decoding only")
    parser.add_argument("--only", default="", help="only servers whose names hold this")
    parser.add_argument("--draft", nargs="*", default=[], help="further options of our server")
    asked = parser.parse_args()
    if (reason := available()) is not None:
        raise SystemExit(reason)
    sizes = [int(size) for size in asked.requests.split(",")]
    if asked.first:
        print(f"{'server':24} {'alone, s':>9} {'beside, s':>9}")
    elif not asked.shared:
        print(f"{'server':24} {'temperature':>11} " + " ".join(f"{n:>6} (read, bound)" for n in sizes))
    for server in _servers(asked):
        lines: list[tuple[float, list[Speed]]] = []
        before = _bounds(sizes, asked) if server.metrics and not (asked.first or asked.shared) else []
        with server:
            if asked.shared:
                print(f"{server.name:24} {asyncio.run(_shared(server, asked))}", flush=True)
                continue
            if asked.first:
                alone, beside = asyncio.run(_first(server, asked))
                print(f"{server.name:24} {alone:9.3f} {beside:9.3f}", flush=True)
                continue
            for temperature in map(float, asked.temperatures.split(",")):
                lines.append((temperature, [asyncio.run(_together(server, n, asked, temperature)) for n in sizes]))
        after = _bounds(sizes, asked) if before else []
        seconds = [(one + other) / 2 for one, other in zip(before, after, strict=True)] or [0.0] * len(sizes)
        for temperature, found in lines:
            told = " ".join(
                f"{each.speed:6.0f} ({each.reading:4.2f}, {each.written * decode_s / n:5.2f})"
                for n, each, decode_s in zip(sizes, found, seconds, strict=True)
            )
            print(f"{server.name:24} {temperature:11.1f} {told}", flush=True)


if __name__ == "__main__":
    main()
