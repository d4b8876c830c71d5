"""Seconds that costly requests to a server take, alone and beside another client that asks for two tokens.

    python benchmarks/heavy_requests.py [--python PATH ...] [--model demo] [--seconds 300]

Each interpreter, one after the other, serves the model (several, of other checkouts, show before and after) and gets
22 requests that are large, or costly to prepare. Each request is sent twice: alone, and while another client asks again
and again. The table, in Markdown, has its size, its status, the seconds until it was answered alone, and the longest
that the other client and ``/health`` waited beside it, per interpreter. Together all of it takes at most so many
seconds; what was not reached, or not answered, has a dash.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import threading
from time import monotonic
from typing import Any

_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"
_SMALL = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
_MOST_S = 60.0
"""So long is waited for one answer."""


def _schema(schema: Any) -> tuple[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return _CHAT, {**_SMALL, "response_format": form}


def _said(content: Any) -> tuple[str, Any]:
    return _CHAT, {**_SMALL, "messages": [{"role": "user", "content": content}]}


def _nested(depth: int) -> Any:
    return {"items": _nested(depth - 1)} if depth else {}


def _tool(n: int) -> Any:
    properties = {f"p{m}": {"type": "string", "pattern": "^[a-z]{1,40}$"} for m in range(10)}
    return {"type": "function", "function": {"name": f"f{n}", "parameters": {"properties": properties}}}


REQUESTS: dict[str, tuple[str, Any]] = {
    "50,000 messages": (_CHAT, {**_SMALL, "messages": _SMALL["messages"] * 50_000}),  # type: ignore[operator]
    "1,000,000 token ids": (_TEXT, {"prompt": [0] * 1_000_000, "max_tokens": 1}),
    "390,000 marks in a message": _said("<|im_end|>" * 390_000),
    "3,000,000 times < in a message": _said("<" * 3_000_000),
    "a word of 3,000,000 letters": _said("a" * 3_000_000),
    "3,000,000 spaces as a prompt": (_TEXT, {"prompt": " " * 3_000_000, "max_tokens": 1}),
    "1,000,000 digits": _said("1" * 1_000_000),
    "100,000 parts of a message": _said([{"type": "text", "text": "x"}] * 100_000),
    "100,000 biases": (_CHAT, {**_SMALL, "logit_bias": {str(n): 1 for n in range(100_000)}}),
    "100,000 stop texts": (_CHAT, {**_SMALL, "stop": [f"s{n}" for n in range(100_000)]}),
    "2,000 tools": (_CHAT, {**_SMALL, "tools": [_tool(n) for n in range(2_000)]}),
    "60 tools, one required": (_CHAT, {**_SMALL, "tools": [_tool(n) for n in range(60)], "tool_choice": "required"}),
    "enum of 300,000": _schema({"enum": [f"v{n}" for n in range(300_000)]}),
    "enum of 10,000": _schema({"enum": [f"v{n}" for n in range(10_000)]}),
    "3,000 times array": _schema({"type": ["array"] * 3_000}),
    "2,000 properties": _schema({"properties": {f"p{n}": {"type": "string"} for n in range(2_000)}}),
    "1,000 alternatives": _schema({"anyOf": [{"const": f"v{n}"} for n in range(1_000)]}),
    "arrays in arrays, 200 deep": _schema(_nested(200)),
    "500 definitions that refer on": _schema(
        {
            "$ref": "#/$defs/0",
            "$defs": {str(n): {"properties": {"a": {"$ref": f"#/$defs/{n + 1}"}}} for n in range(500)},
        }
    ),
    "a pattern with many states": _schema({"type": "string", "pattern": "^(a|b)*a(a|b){40}c$"}),
    "a grammar of 64 KiB": (_CHAT, {**_SMALL, "grammar": "root ::= " + " | ".join(['"abc" [a-z]*'] * 4_000)}),
    "4 MiB of nested lists": (_CHAT, {**_SMALL, "metadata": [[[]]] * 500_000}),
}


class _Server:
    """A server of the model, in a process of its own."""

    def __init__(self, python: str, model: str) -> None:
        command = [python, "-m", "edge_spec", "serve", model, "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said += line
            found = re.search(r"http://[\w.\[\]:]*?:(\d+)", line)
            if found is not None:
                self._port = int(found[1])
                threading.Thread(target=self._process.stdout.read, daemon=True).start()
                return
        raise SystemExit(f"{python} did not serve: {said[-400:]}")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    def ask(self, path: str, body: bytes, until: float) -> tuple[int, float]:
        """Return the status of an answer, 0 where there was none in time, and the seconds that it took."""
        began = monotonic()
        method = "POST" if body else "GET"
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        answer = b""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=max(0.1, until - began)) as asking:
                asking.sendall(head.encode() + body)
                while piece := asking.recv(65536):
                    answer += piece
        except OSError:
            # What is refused for its size may be closed before all of it is sent.
            pass
        found = re.match(rb"HTTP/1\.1 (\d+)", answer)
        return int(found[1]) if found else 0, monotonic() - began

    def beside(self, path: str, body: bytes, until: float) -> tuple[float, float]:
        """Return the longest that a client, and ``/health``, wait while a request is prepared and answered."""
        asking = threading.Thread(target=self.ask, args=(path, body, until))
        asking.start()
        small = json.dumps(_SMALL).encode()
        waits: list[float] = []
        healthy: list[float] = []
        while not waits or (asking.is_alive() and monotonic() < until):
            waits.append(self.ask(_CHAT, small, until)[1])
            healthy.append(self.ask("/health", b"", until)[1])
        asking.join()
        return max(waits), max(healthy)


def measured(server: _Server, until: float) -> dict[str, list[str]]:
    """Return the cells of each request."""
    small = json.dumps(_SMALL).encode()
    server.ask(_CHAT, small, until)
    found = {name: ["-"] * 4 for name in REQUESTS}
    for name, (path, fields) in REQUESTS.items():
        if monotonic() > until:
            break
        body = json.dumps(fields).encode()
        status, alone = server.ask(path, body, min(until, monotonic() + _MOST_S))
        waited, health = server.beside(path, body, min(until, monotonic() + _MOST_S))
        found[name] = [str(status or "-"), *(f"{seconds:.2f}" for seconds in (alone, waited, health))]
        print(f"{name}: {', '.join(found[name])}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="PATH", help="an interpreter that has edge-spec")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--seconds", type=float, default=300.0)
    asked = parser.parse_args()
    pythons = asked.python or [sys.executable]
    columns = []
    for each in pythons:
        until = monotonic() + asked.seconds / len(pythons)
        server = _Server(each, asked.model)
        try:
            columns.append(measured(server, until))
        finally:
            server.close()
    heads = ["status", "alone, s", "another client, s", "/health, s"] * len(pythons)
    print(f"| request | KiB | {' | '.join(heads)} |\n|---|---:|{'---:|' * len(heads)}")
    for name, (_, fields) in REQUESTS.items():
        cells = [cell for column in columns for cell in column[name]]
        print(f"| {name} | {len(json.dumps(fields)) >> 10:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
