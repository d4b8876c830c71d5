"""Laws of the README: what it shows works as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_spec.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
VERBS = ("run", "chat", "check", "bench", "plan", "doctor", "serve")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = str(tmp_path_factory.mktemp("home"))
    return {**os.environ, "HOME": home, "XDG_CACHE_HOME": home, "LOCALAPPDATA": home, "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def one_core() -> Iterator[None]:
    """As many threads as cores are the default, and slow where another program needs one of the cores."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture
def flags(capsys: pytest.CaptureFixture[str]) -> Callable[[str], set[str]]:
    """The flags that a verb's help names."""

    def of(verb: str) -> set[str]:
        with pytest.raises(SystemExit):
            main([*verb.split(), "--help"])
        return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", capsys.readouterr().out))

    return of


def test_there_are_python_blocks_to_run() -> None:
    assert len(blocks("python")) >= 2
    assert README.count("```python") == len(blocks("python"))


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_blocks_run_as_written(number: int, surroundings: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", blocks("python")[number]],
        capture_output=True,
        env=surroundings,
        cwd=tmp_path,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    assert len(done.stdout.decode().strip()) > 20


def test_the_test_command_is_the_one_that_is_run() -> None:
    """Each of its steps is a line of ``.ci/run``, in this order; style and types come in between."""
    (command,) = [line for line in "".join(blocks("sh")).splitlines() if "pytest" in line]
    lines = iter((ROOT / ".ci" / "run").read_text("utf-8").splitlines())
    assert all(step in lines for step in command.split(" && "))


def test_nothing_is_left_to_be_filled_in() -> None:
    for mark in ("@@", "TODO", "FIXME", "XXX"):
        assert mark not in README


def test_commands_use_flags_that_exist(flags: Callable[[str], set[str]]) -> None:
    known = {verb: flags(verb) for verb in VERBS}
    commands = re.findall(r"(?<![\w.])(?:\S*/)?edge-spec (run|chat|check|bench|plan|doctor|serve)\b([^`\n]*)", README)
    assert {verb for verb, _ in commands} == set(VERBS)
    for verb, arguments in commands:
        # Neither comments nor what stands in quotes is a flag.
        arguments = re.sub(r"#.*|\"[^\"]*\"|'[^']*'", "", arguments)
        used = set(re.findall(r"(?<!\S)--?[a-zA-Z][\w-]*", arguments))
        assert used <= known[verb], f"edge-spec {verb} {arguments}"


def test_help_names_every_flag(flags: Callable[[str], set[str]]) -> None:
    known = set().union(*map(flags, ("", *VERBS)))
    mentioned = re.findall(r"`(--?[a-zA-Z][\w-]*)[^`\n]*`", README)
    assert mentioned
    assert set(mentioned) <= known


def test_links_to_files_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
