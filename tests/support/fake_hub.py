"""A server on this computer that speaks the hub's protocol as far as models are fetched, and injects faults."""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from edge_spec.library.hub import Hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"

FAULTS = (
    "cut",  # the connection ends in the middle
    "cut at once",  # it ends before the first byte
    "busy",  # 429, with a time to wait
    "broken",  # 500
    "unavailable",  # 503
    "ignores ranges",  # all of the file, whatever was asked for
    "another byte",  # of the right size, and damaged
    "too short",  # says that it is complete, and is not
    "too long",  # more than was asked for
    "another part",  # a range that was not asked for
    "loop",  # redirects to itself
    "no token",  # 401
    "no JSON",  # of the list of files
)


class FakeHub:
    """What the server holds and does.

    Attributes:
        repositories: content by path, by name.
        fault: asked for each request, whether for the list or for a file; one of ``FAULTS``, or empty for none.
        requests: how many there were, of any kind.
        asked: ranges of bytes that were asked for, ``(path, first, last)``.
        address: of the server.
        elsewhere: address of another server that holds the files; this one if empty.
        plain: content of files that are no repository's, by path.
        versions: their ETags, by path; those without one have none.
        lie: changes what it says of a repository.
        stop_at: so many bytes into a file, wait for ``go_on``; 0 for never.
        listing: what it answers for a list of files, with further headers, if not the truth.
        most_at_once: so many bytes of a file it sends before the connection ends; 0 for all.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.fault: Callable[[], str] = lambda: ""
        self.requests = 0
        self.asked: list[tuple[str, int, int]] = []
        self.address = ""
        self.tokens: list[str] = []
        self.gated: set[str] = set()
        self.chance = random.Random(1)
        self.elsewhere = ""
        self.plain: dict[str, bytes] = {}
        self.versions: dict[str, str] = {}
        self.lie: Callable[[dict[str, Any]], object] = lambda listed: None
        self.stop_at = 0
        self.listing: tuple[bytes, dict[str, str]] | None = None
        self.most_at_once = 0
        self.stopped = threading.Event()
        self.go_on = threading.Event()


def client(hub: FakeHub) -> Hub:
    """Return what asks a hub, and does not wait before it asks again."""
    return Hub(endpoint=hub.address, pause=lambda seconds: None)


def fail(hub: FakeHub, *faults: str) -> None:
    """Let the next requests fail in these ways, and none after them."""
    left = iter(faults)
    hub.fault = lambda: next(left, "")


def under_their_names(folder: Path) -> list[Path]:
    """Everything but what is kept of interrupted downloads."""
    return [path for path in folder.rglob("*") if path.is_file() and ".partial" not in path.parts]


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub that serves while the context lasts."""
    hub = FakeHub()

    class Handler(_Handler):
        state = hub

    server = _Server(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of those who left before they were answered, at whatever moment."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    state: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.state.requests += 1
        path = unquote(urlsplit(self.path).path)
        self.state.tokens.append(self.headers.get("Authorization", ""))
        fault = self.state.fault()
        status = {"busy": 429, "broken": 500, "unavailable": 503, "no token": 401}.get(fault)
        if status is not None:
            headers = {"Retry-After": "3"} if status == 429 else {}
            return self._answer(status, b"{}", {**headers, **({"X-Error-Code": "GatedRepo"} if status == 401 else {})})
        if fault == "loop":
            return self._answer(302, b"", {"Location": self.path})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/([^/]+))?", path):
            return self._repository(found[1], fault)
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            # As the hub does: files lie on another server.
            if found[3] not in self.state.repositories.get(found[1], {}):
                return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return self._answer(
                302, b"", {"Location": f"{self.state.elsewhere or self.state.address}/cdn/{found[1]}/{found[3]}"}
            )
        if found := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            return self._file(found[2], self.state.repositories[found[1]][found[2]], fault)
        if (plain := self.state.plain.get(path)) is not None:
            version = self.state.versions.get(path)
            return self._file(path, plain, fault, {"ETag": version} if version else {})
        return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"} if path.startswith("/api/") else {})

    def _repository(self, name: str, fault: str) -> None:
        if name in self.state.gated:
            return self._answer(401, b"{}", {"X-Error-Code": "GatedRepo"})
        if name not in self.state.repositories:
            return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if fault == "no JSON":
            return self._answer(200, b"<html>welcome to the hotel</html>", {})
        if self.state.listing is not None:
            return self._answer(200, *self.state.listing)
        siblings = [
            {
                "rfilename": path,
                "size": len(content),
                "blobId": "b",
                "lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 1},
            }
            for path, content in self.state.repositories[name].items()
        ]
        listed = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
        self.state.lie(listed)
        return self._answer(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})

    def _file(self, path: str, content: bytes, fault: str, more: dict[str, str] | None = None) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(found[1]), int(found[2])) if found else (0, len(content) - 1)
        self.state.asked.append((path, first, last))
        if fault == "another part":
            first = min(first + 7, last)
        is_range = found is not None and fault != "ignores ranges"
        body = content[first : last + 1] if is_range else content
        headers = {"Content-Range": f"bytes {first}-{last}/{len(content)}"} if is_range else {}
        headers |= more or {}
        if fault == "another byte" and body:
            place = self.state.chance.randrange(len(body))
            body = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        if fault == "too short":
            body = body[: len(body) // 2]
        if fault == "too long":
            body += b"more"
        cut = {"cut": self.state.chance.randrange(max(1, len(body))), "cut at once": 0}.get(
            fault, self.state.most_at_once or None
        )
        self._answer(206 if is_range else 200, body, headers, cut=cut)

    def _answer(self, status: int, body: bytes, headers: dict[str, str], *, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if 0 < self.state.stop_at < len(body):
            self.wfile.write(body[: self.state.stop_at])
            self.wfile.flush()
            self.state.stopped.set()
            self.state.go_on.wait()
            body = body[self.state.stop_at :]
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
