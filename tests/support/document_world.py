"""Where what documents show is run: a home in which nothing has happened yet, and a path with the command on it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from document_command import MORE, stop_servers
from documents import A_FILE, ROOT, Block

__all__ = ["DocumentWorld"]

_SERVER = "127.0.0.1:8080"
"""Where documents expect the server. It runs at another port, which no other program has."""

_TYPED = "Name a dog.\n"
"""What the user types, where a command asks for something."""

_PROGRAMS = {
    "edge-spec": f'exec {sys.executable!r} {str(Path(__file__).with_name("document_command.py"))!r} "$@"',
    "python": f'exec {sys.executable!r} "$@"',
    "git": "printf -- '-Hello\\n+Hello, dog\\n'",
    # It would change the environment that runs the tests.
    "pip": "echo 'mark what installs for .ci/run' >&2; exit 1",
}

_TIMEOUT_S = 900


class DocumentWorld:
    """A user's home and the folder that the user is in; at the end of the context its servers are stopped.

    Args:
        folder: an empty one.
        more: options that verbs get besides those that are written.
        caches: what edge-spec keeps of models that it has run; those of the home if None.
    """

    def __init__(self, folder: Path, more: Mapping[str, Sequence[str]], *, caches: Path | None = None) -> None:
        self._home, self._here, programs = folder / "home", folder / "here", folder / "programs"
        for each in (self._home, self._here, programs):
            each.mkdir()
        for name, script in _PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            (programs / name).chmod(0o755)
        for name in ("benchmarks", "examples"):
            (self._here / name).symlink_to(ROOT / name)
        if caches is not None:
            (self._home / ".cache").symlink_to(caches)
        (self._home / ".config" / "fish" / "completions").mkdir(parents=True)  # as fish does when it starts
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self._server = _SERVER.replace("8080", port)
        more = {**more, "serve": [*more.get("serve", ()), "--port", port]}
        own = ("EDGE_SPEC_", "XDG_", "HF_", "HUGGINGFACE_", "OLLAMA_")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(own)},
            "HOME": str(self._home),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONIOENCODING": "utf-8",
            MORE: json.dumps(more),
        }

    def fault(self, block: Block) -> str:
        """Run a block, and return what is wrong with it; empty if nothing is."""
        if block.marker.startswith(A_FILE):
            self._write(block)
            return ""
        path = self._here / "block"
        text = block.text if block.kind == "python" else block.commands
        path.write_text(text.replace(_SERVER, self._server), encoding="utf-8")
        program = [sys.executable] if block.kind == "python" else ["sh", "-ex"]
        done = subprocess.run(
            [*program, str(path)],
            cwd=self._here,
            env=self._environment,
            input=_TYPED,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_TIMEOUT_S,
        )
        wrong = f"exit code {done.returncode}" if done.returncode else ""
        if block.kind == "python":
            wrong = wrong or ("something on standard error" if done.stderr else "")
        elif "edge-spec: error:" in done.stderr or "Traceback (" in done.stderr:
            wrong = wrong or "an error"  # in a pipe only the last command's exit code counts
        if block.kind != "sh":
            wrong = wrong or ("" if done.stdout.strip() else "no output")
        return f"{block.place}: {wrong}\n{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}" if wrong else ""

    def _write(self, block: Block) -> None:
        """Write the file that a block is; later blocks show whether it is of any use."""
        path = self._here / block.marker.removeprefix(A_FILE).replace("~", str(self._home), 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        stop_servers(self._home)
