"""The command as documents are tried with it: files and servers that a reader would have are there, in small.

It is put on the path as ``edge-spec`` (see ``document_world``). A model that a command names and that is not there is
one of the demo family, by its role; a hub on this computer takes the place of all others; ``serve`` goes on in the
background once it is ready, so that the commands after it have a server; verbs may get further options, to end sooner.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from documents import ROOT
from fake_hub import FakeHub, fake_hub
from gguf_files import MATRICES, write_gguf
from platformdirs import user_config_path

from edge_spec.cli import main
from edge_spec.cli.command import root
from edge_spec.cli.folders import ModelName
from edge_spec.library.wanted import wanted
from edge_spec.models import resolve_family

__all__ = ["MORE", "run", "stop_servers"]

MORE = "EDGE_SPEC_DOCUMENTS_MORE"
"""The variable that says which options verbs get besides, as JSON: lists by verb."""

_SERVERS = "servers"
"""The folder in the user's home with what each server that runs has said, in a file named by its process."""

_ROLES = {"draft": "draft", "drafts": "draft", "intermediate": "intermediate"}
_TEXT = "Why is the sky blue?\n"


def run(arguments: Sequence[str]) -> None:
    """Do what ``edge-spec`` does with these arguments, and leave with its exit code."""
    more: Mapping[str, list[str]] = json.loads(os.environ[MORE])
    for name, values in _given(arguments):
        _provide(name, values)
    verb = " ".join(arguments[: 2 if " ".join(arguments[:2]) in more else 1])
    arguments = [*arguments, *more.get(verb, ())]
    if verb == "serve":
        sys.exit(_serve(arguments))
    if verb == "pull":
        with fake_hub() as hub, fake_hub() as elsewhere:
            os.environ["HF_ENDPOINT"] = hub.address
            main(_with_servers(hub, elsewhere, arguments))
    main(arguments)


def _given(arguments: Sequence[str]) -> Iterator[tuple[click.Parameter, list[str]]]:
    """The parameters that arguments give, with their values as they are typed."""
    command, rest = root(), list(arguments)
    context = click.Context(command)
    while isinstance(command, click.Group) and rest:
        found = command.get_command(context, rest.pop(0))
        if found is None:
            return
        command, context = found, click.Context(found, parent=context)
    try:
        values: dict[str, Any] = command.make_parser(context).parse_args(rest)[0]
    except click.UsageError:  # the command says it better
        return
    for parameter in command.params:
        value = values.get(str(parameter.name))
        if isinstance(value, str | tuple | list):
            yield parameter, [value] if isinstance(value, str) else [each for each in value if isinstance(each, str)]


def _provide(parameter: click.Parameter, values: Sequence[str]) -> None:
    """Make the files that a parameter names and that are not there."""
    for path in map(Path, values):
        if getattr(parameter, "metavar", "") == "[TARGET]":  # of ``pair``, which looks for a drafter beside it
            _provide_gguf(path.with_name("small-q4_0.gguf"), "draft")
        if path.exists():
            continue
        if parameter.name == "file":
            path.write_text(_TEXT, encoding="utf-8")
        elif parameter.name == "head":
            shutil.copyfile(_file_of("draft", "smollm2"), path)
        elif parameter.name == "texts":
            path.mkdir(parents=True)
            shutil.copy(ROOT / "CHANGELOG.md", path)
        elif isinstance(parameter.type, ModelName) and path.suffix == ".gguf":
            _provide_gguf(path, _ROLES.get(str(parameter.name), "target"))
        elif isinstance(parameter.type, ModelName) and any(value.endswith("/") for value in values):
            _provide_onnx(path)


def _provide_gguf(path: Path, role: str) -> None:
    if path.stem.lower().endswith("f16"):
        write_gguf(path, kinds=dict.fromkeys(MATRICES, "F16"))
    else:
        shutil.copyfile(_file_of(role), path)


def _provide_onnx(folder: Path) -> None:
    from published_models import publish  # as slow to import as all the rest
    from published_weights import read_weights

    publish(folder, read_weights(_file_of("target")), "genai", four_bits=True)


def _file_of(role: str, family: str = "demo") -> Path:
    path: Path = getattr(resolve_family(family), role)
    return path


def _with_servers(hub: FakeHub, elsewhere: FakeHub, arguments: Sequence[str]) -> list[str]:
    """The arguments of ``pull``; the hub gets what they ask for, and another server takes the place of all others."""
    arguments = [re.sub("^https://[^/]*", elsewhere.address, each) for each in arguments]
    for parameter, values in _given(arguments):
        if parameter.name not in ("name", "draft"):
            continue
        for value in values:
            sources = wanted(value, user_config_path("edge-spec") / "catalogue.toml").sources
            for role, source in sources.items():
                content = _file_of("draft" if parameter.name == "draft" else role).read_bytes()
                if source.address:
                    elsewhere.plain[urlsplit(source.address).path] = content
                else:
                    name = source.repo.rpartition("/")[2]
                    hub.repositories.setdefault(source.repo, {})[source.patterns[0].replace("*", name)] = content
    return arguments


def _serve(arguments: Sequence[str]) -> int:
    """Start a server in place of any other, and return when it is ready or has ended."""
    stop_servers(Path.home())
    folder = Path.home() / _SERVERS
    folder.mkdir(exist_ok=True)
    starting = folder / "starting"
    with starting.open("w", encoding="utf-8") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "edge_spec", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    while process.poll() is None and " at http://" not in starting.read_text("utf-8"):
        time.sleep(0.05)
    sys.stderr.write(starting.read_text("utf-8"))
    if process.returncode is None:
        starting.rename(folder / str(process.pid))
    return process.returncode or 0


def stop_servers(home: Path) -> None:
    """Press Ctrl-C for all servers that run in a home, and wait until they say that they have stopped."""
    for said in (home / _SERVERS).glob("[0-9]*"):
        os.kill(int(said.name), signal.SIGINT)
        end = time.monotonic() + 60
        while "edge-spec: stopped" not in said.read_text("utf-8"):
            if time.monotonic() > end:
                raise TimeoutError(f"the server does not stop: {said.read_text('utf-8')}")
            time.sleep(0.05)
        said.unlink()


if __name__ == "__main__":
    run(sys.argv[1:])
