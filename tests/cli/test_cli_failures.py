"""Laws of the command where something is wrong: one line that says what, a code, and never a traceback."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from forked import forked

from edge_spec.cli import main
from edge_spec.models import resolve_family

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-c", "from edge_spec.cli import main; main()"]
LATER = ["--threads", "1", "-n", "4", "-p", "A"]
DRAFTER = resolve_family("demo").draft or Path()
BAD = "no \udcff UTF-8"

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX descriptors")

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def run(surroundings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("work")

    def run_it(
        *arguments: str, stdin: bytes = b"", stdout: Any = subprocess.PIPE
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=surroundings,
            cwd=folder,
            timeout=60,
        )

    return run_it


@pytest.fixture(scope="module")
def begun(run: Run, surroundings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs the command with nothing on standard input, in a fork where there are forks: Python need not start."""
    folder = tmp_path_factory.mktemp("work")

    def begin(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        def work() -> None:
            os.environ.clear()
            os.environ.update(surroundings)
            os.chdir(folder)
            sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
            main([*arguments])

        if not hasattr(os, "pidfd_open"):
            return run(*arguments)
        done = forked(work, seconds=60)
        return subprocess.CompletedProcess(arguments, done.code or 0, done.out.encode(), done.err.encode())

    return begin


def complaint(stderr: bytes) -> str:
    """The one line that says what is wrong; notes may come before it."""
    *notes, last = stderr.decode().replace(os.linesep, "\n").splitlines(keepends=True)
    assert all(line.startswith("edge-spec: ") and "error" not in line for line in notes)
    assert re.fullmatch(r"edge-spec: error: .+\n", last)
    return last


# --- bad input


def drafter_of_another_vocabulary() -> bytes:
    return DRAFTER.read_bytes().replace("Ġthe".encode(), "Ġteh".encode(), 1)


@pytest.mark.parametrize(
    ("arguments", "content", "code"),
    [
        (["run", "no-such.gguf", *LATER], None, 1),
        (["run", ".", *LATER], None, 1),
        (["chat", "demo", "--no-history", "--session", "talk.chat"], None, 2),
        (["run", "FILE", *LATER], lambda: b"", 1),
        (["run", "FILE", *LATER], lambda: b"Once upon a time.\n" * 99, 1),
        (["run", "FILE", *LATER], lambda: random.Random(1).randbytes(9999), 1),
        (["run", "FILE", *LATER], lambda: DRAFTER.read_bytes()[:-1000], 1),
        (["run", "demo", "--draft", "FILE", *LATER], drafter_of_another_vocabulary, 1),
        (["run", "demo", "--ctx", "0", *LATER], None, 2),
        (["run", "demo", "--ctx", str(10**8), *LATER], None, 1),
        (["run", "demo", "--top-p", "3", *LATER], None, 2),
        (["run", "demo", "--seed", str(1 << 64), *LATER], None, 2),
        (["run", "demo", "-n", "0", "--threads", "1", "-p", "A"], None, 2),
        (["run", "demo", "--kv", "q9", *LATER], None, 2),
        (["run", "demo", "-p", " \n"], None, 2),
        (["run", "demo"], None, 1),
        (["run", "demo", "--threads", "1", "-p", "many words " * 2000], None, 1),
        (["run", "demo", "-p", BAD], None, 2),
        (["run", "demo", "-f", "FILE"], lambda: b"no \xff UTF-8", 1),
        (["run", "demo", "--system", BAD, *LATER], None, 2),
        (["run", "demo", "--stop", BAD, *LATER], None, 2),
        (["run", "demo", "--speculation", "magic", *LATER], None, 2),
        (["run", "demo", "--no-such-option", *LATER], None, 2),
        (["run", "demo", "--logit-bias", "5", *LATER], None, 2),
        (["run", "demo", "-p", "A", "-f", "FILE"], lambda: b"A", 2),
        (["run", "demo", "--cache-dir", "FILE", *LATER], lambda: b"A", 2),
        (["serve", "--port", "99999"], None, 2),
        (["serve", "--timeout", "nan"], None, 2),
    ],
    ids=[
        "missing model",
        "directory",
        "history and none",
        "empty file",
        "text file",
        "random bytes",
        "truncated copy",
        "other vocabulary",
        "ctx 0",
        "huge ctx",
        "top-p 3",
        "seed of 65 bits",
        "n 0",
        "unknown kv",
        "blank prompt",
        "empty stdin",
        "long prompt",
        "-p no UTF-8",
        "-f no UTF-8",
        "--system no UTF-8",
        "--stop no UTF-8",
        "unknown speculation",
        "unknown option",
        "bad bias",
        "-p and -f",
        "file as folder",
        "serve without a model",
        "no number of seconds",
    ],
)
def test_bad_input_is_one_line_and_a_code(
    begun: Run, tmp_path: Path, arguments: Sequence[str], content: Callable[[], bytes] | None, code: int
) -> None:
    path = tmp_path / "file.gguf"
    if content is not None:
        path.write_bytes(content())
    done = begun(*[str(path) if argument == "FILE" else argument for argument in arguments])
    assert done.returncode == code
    assert done.stdout == b""
    said = complaint(done.stderr)
    if content is not None and code == 1:
        assert path.name in said


def test_a_prompt_on_standard_input_that_is_no_text_is_one_line_and_a_code(run: Run) -> None:
    done = run("run", "demo", stdin=b"no \xff UTF-8")
    assert (done.returncode, done.stdout) == (1, b"")
    complaint(done.stderr)


# --- output that goes nowhere


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("asked", [[], ["--json"]], ids=["text", "json"])
def test_a_full_disk_is_one_line(run: Run, asked: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run("run", "demo", *LATER, *asked, stdout=full)
    assert done.returncode == 1
    assert re.search("standard output: .*space", complaint(done.stderr))


@posix
def test_output_that_is_closed_from_the_start_is_one_line(surroundings: dict[str, str]) -> None:
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "run", "demo", *LATER]
    done = subprocess.run(shell, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=surroundings, timeout=60)
    assert done.returncode == 1
    assert "closed" in complaint(done.stderr)


@posix
@pytest.mark.parametrize("verb", ["run", "chat"])
def test_a_reader_that_leaves_ends_it_without_a_word(verb: str, surroundings: dict[str, str], tmp_path: Path) -> None:
    """With the exit code of a program that a closed pipe ends."""
    prompt = ["-p", "A", "--ignore-eos"] if verb == "run" else []
    with subprocess.Popen(
        [*COMMAND, verb, "demo", "--threads", "1", "-n", "900", *prompt],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=surroundings,
        cwd=tmp_path,
        bufsize=0,
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(b"Tell me a long story.\nAnd another one.\n" * 20)
        process.stdin.close()
        assert process.stdout.read(1)
        process.stdout.close()
        stderr = process.stderr.read().decode()
        assert process.wait(30) == 141
    assert [line for line in stderr.splitlines() if not line.startswith(("edge-spec: note: ", "edge-spec: cal"))] == []


# --- models


def test_a_folder_of_models_lists_them(run: Run, tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf", "c-00001-of-00002.gguf", "c-00002-of-00002.gguf", "notes.txt"):
        shutil.copyfile(DRAFTER, tmp_path / name)
    done = run("run", str(tmp_path), *LATER)
    assert done.returncode == 1
    said = complaint(done.stderr)
    assert "3 models: a.gguf, b.gguf, c-00001-of-00002.gguf; name one" in said
    for name in ("b.gguf", "c-00001-of-00002.gguf", "c-00002-of-00002.gguf"):
        (tmp_path / name).unlink()
    (tmp_path / "broken.onnx").touch()  # what a download left hides no model
    assert run("run", str(tmp_path), *LATER, "--speculation", "off").returncode == 0


# --- grammars


def test_a_reply_that_its_grammar_keeps_empty_is_said_to_be_empty(run: Run) -> None:
    done = run("run", "demo", "--grammar", "root ::= ", *LATER)
    assert (done.returncode, done.stdout) == (0, os.linesep.encode())
    assert b"note: the reply is empty, which its grammar allows" in done.stderr
