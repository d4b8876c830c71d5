"""Laws of the verbs that take a model: each works where none is named."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import click
import pytest

from edge_spec.cli.command import root
from edge_spec.cli.folders import ModelName

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-m", "edge_spec"]
BRIEF = ("--limit", "1", "-n", "4")
NEEDS_ONE = {"quantize"}
"""It writes the model that it is given, as the file that is named behind it."""

CALLS: dict[str, list[tuple[str, ...]]] = {
    "run": [("-p", "Hi", "-n", "2")],
    "chat": [("-n", "2")],
    "serve": [("--port", "0")],
    "check": [(*BRIEF, "--temperatures", "0")],
    "bench": [(*BRIEF, "--rounds", "1")],
    "plan": [()],
    "info": [()],
    "pair": [(*BRIEF, "--rounds", "1", "--no-remember"), ("--forget",)],
    "drafter make": [("--texts", "nowhere", "--out", "drafter")],
    "drafter pack": [("--texts", "nowhere", "--out", "prompts.npz")],
}
SAYS = dict.fromkeys(("drafter make", "drafter pack"), "--texts is 'nowhere', which is not a folder")
"""What is refused behind the model; all else succeeds."""


def verbs(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    """All verbs by name, those of verbs included."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from verbs(found, *names, name)
        else:
            yield " ".join((*names, name)), found


def test_every_verb_that_takes_a_model_is_tried_without_one() -> None:
    taking = {
        name: param
        for name, command in verbs(root())
        for param in command.params
        if isinstance(param, click.Argument) and param.name in ("model", "models")
    }
    assert all(isinstance(param.type, ModelName) for param in taking.values())
    assert {name for name, param in taking.items() if param.required} == NEEDS_ONE
    assert taking.keys() == CALLS.keys() | NEEDS_ONE


@pytest.mark.parametrize(("verb", "options"), [(verb, call) for verb, calls in CALLS.items() for call in calls])
def test_a_verb_works_without_a_model(
    verb: str, options: tuple[str, ...], surroundings: dict[str, str], tmp_path: Path
) -> None:
    command = [*COMMAND, *verb.split(), *options]
    environment = {name: value for name, value in surroundings.items() if not name.startswith("EDGE_SPEC_")}
    work = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
    )
    if verb == "serve":
        assert work.stderr is not None
        at = next(filter(None, (re.search(r" at (http\S+)", line.decode()) for line in work.stderr)))
        with urlopen(f"{at[1]}/models", timeout=300):
            work.send_signal(signal.SIGINT)
    out, error = work.communicate(b"Hi\n" if verb == "chat" else b"", timeout=300)
    if verb in SAYS:
        assert SAYS[verb] in error.decode()
        return
    assert (work.returncode, b"error" in error) == (0, False), error
    assert bool(out) == (verb != "serve")
