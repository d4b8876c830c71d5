"""Little address space, few files, no home, a file cut short while it is read: a line says so, and exit code 1."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_spec.memory import Limit, Readings, probe
from edge_spec.models import resolve_family

pytestmark = pytest.mark.long

resource = pytest.importorskip("resource")

COMMAND = (sys.executable, "-m", "edge_spec")
VERBS = {
    "list": ("list",),
    "plan": ("plan", "demo"),
    "run": ("run", "demo", "-n", "2", "-p", "Hello"),
    "serve": ("serve", "demo", "--port", "0"),
    "config": ("config",),
}


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGE_SPEC_", "XDG_"))}
    return kept | {"HOME": str(tmp_path / "home")}


@pytest.fixture
def told(surroundings: dict[str, str]) -> Callable[..., str]:
    """Run a verb that must fail; returns its line."""

    def run(*arguments: str, limit: int, most: int) -> str:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=surroundings,
            timeout=60,
            preexec_fn=lambda: resource.setrlimit(limit, (most, most)),
        )
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    return run


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("mib", [40, 100, 150, 200, 250, 300])
def test_too_little_address_space_is_told_before_a_library_fails(told: Callable[..., str], verb: str, mib: int) -> None:
    needed = 320 + 64 * (os.cpu_count() or 1)
    assert told(*VERBS[verb], limit=resource.RLIMIT_AS, most=mib << 20) == (
        f"edge-spec: error: address space is limited to {mib} MiB, and libraries reserve {needed} MiB; "
        f"raise the limit: ulimit -v {needed << 10}; --memory bounds what is used of it\n"
    )


def test_python_without_memory_for_the_command_itself_says_so(told: Callable[..., str]) -> None:
    """So little that even this line is uncertain: it is one, whichever it is."""
    for mib in (22, 24, 26):
        line = told("list", limit=resource.RLIMIT_AS, most=mib << 20)
        assert line.startswith("edge-spec: error: ") and line.count("\n") == 1


def test_a_budget_leaves_address_space_for_threads() -> None:
    """Their stacks and heaps are reserved in advance; libraries end the process where there is no room for one."""
    ram = Limit(total_bytes=8 << 30, available_bytes=8 << 30)
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = 1 << 40
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        limit = Readings().address_space()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert limit is not None and limit.total_bytes == most
    assert limit.available_bytes < most - (os.cpu_count() or 1) * (72 << 20)
    assert probe(Readings(ram=lambda: ram, address_space=lambda: limit, text=lambda path: None)).total_bytes == 8 << 30


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("files", [8, 16, 31])
def test_too_few_files_are_told_before_a_library_fails(told: Callable[..., str], verb: str, files: int) -> None:
    assert told(*VERBS[verb], limit=resource.RLIMIT_NOFILE, most=files) == (
        f"edge-spec: error: no more than {files} files can be open at once, and 32 are needed; "
        "raise the limit: ulimit -n 32\n"
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_user_without_a_home_is_told_so(surroundings: dict[str, str], verb: str) -> None:
    unknown = """
import pwd, sys
def getpwuid(number):
    raise KeyError(number)
pwd.getpwuid = getpwuid
from edge_spec.cli import main
main()
"""
    del surroundings["HOME"]
    command = [sys.executable, "-c", unknown, *VERBS[verb]]
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "edge-spec: error: this user has no home; set HOME to a folder where caches and settings can be kept\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse to cut a file that is mapped")
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_model_that_is_cut_short_while_it_is_read_is_told(
    surroundings: dict[str, str], engine: str, tmp_path: Path
) -> None:
    model, cache = tmp_path / "model.gguf", tmp_path / "cache"
    model.write_bytes(resolve_family("demo").target.read_bytes())
    run = (*COMMAND, "run", str(model), "--engine", engine, "--speculation", "off", "--cache-dir", str(cache))
    mapped = ("--no-repack",) if engine == "llama" else ()
    endless = ("--ignore-eos", "-n", "1000", "-p", "Hello", "--threads", "1")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*run, *mapped, *endless], env=surroundings, bufsize=0, **pipes) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        for path in (model, *cache.rglob("weights.bin")):
            os.truncate(path, 4096)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error.decode().splitlines()[-1] == (
        "edge-spec: error: a model's file was cut short while it was in use, or its disk cannot be read; "
        "get the file again, and replace files instead of writing into them"
    )
    assert b"Traceback" not in error
