"""A client of a language server, as an editor is one: it opens a file and asks what could be typed at a place."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["LanguageServer", "language_server"]


class LanguageServer:
    """Talks to a server that runs.

    Args:
        process: the server, with pipes to its standard input and output.
        settings: what it is told when it asks for its configuration.
    """

    def __init__(self, process: subprocess.Popen[bytes], settings: dict[str, Any]) -> None:
        self._process = process
        self._settings = settings
        self._n_asked = 0

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: Any) -> Any:
        """Send a request and return the result."""
        self._n_asked += 1
        self._send({"id": self._n_asked, "method": method, "params": params})
        while True:
            said = self._receive()
            if "method" in said and "id" in said:
                items = said["params"]["items"] if said["method"] == "workspace/configuration" else None
                result = [self._settings for _ in items] if items is not None else None
                self._send({"id": said["id"], "result": result})
            elif said.get("id") == self._n_asked:
                assert "error" not in said, said
                return said["result"]

    def completions(self, path: Path, text: str) -> set[str]:
        """Return the words that could follow at the end of a text, which is that of a file."""
        uri = path.as_uri()
        opened = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": opened})
        lines = text.split("\n")
        place = {"line": len(lines) - 1, "character": len(lines[-1])}
        found = self.ask("textDocument/completion", {"textDocument": {"uri": uri}, "position": place})
        self.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
        return {item["label"] for item in (found["items"] if isinstance(found, dict) else found)}

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        headers = b"".join(iter(self._process.stdout.readline, b"\r\n"))
        size = int(headers.lower().partition(b"content-length:")[2].split()[0])
        message: dict[str, Any] = json.loads(self._process.stdout.read(size))
        return message


@contextmanager
def language_server(command: Sequence[str], root: Path, settings: dict[str, Any]) -> Iterator[LanguageServer]:
    """Run a server for the files of a folder."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            server = LanguageServer(process, settings)
            folders = [{"uri": root.as_uri(), "name": root.name}]
            capabilities = {"workspace": {"configuration": True, "workspaceFolders": True}}
            begin = {"processId": None, "rootUri": root.as_uri(), "workspaceFolders": folders}
            server.ask("initialize", {**begin, "capabilities": capabilities})
            server.notify("initialized", {})
            yield server
        finally:
            process.kill()
