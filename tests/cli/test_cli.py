"""Laws of the command: replies on standard output, the same however they are drafted, and a way out at any time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from edge_spec.cli import main
from edge_spec.speculation.modes import MODES

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-c", "from edge_spec.cli import main; main()"]
PROMPT = "Tell me a short story about a dog."
SAME = ["--threads", "1", "--seed", "7", "-n", "24"]

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def run(surroundings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("work")

    def run_it(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *arguments], input=stdin, capture_output=True, env=surroundings, cwd=folder, timeout=60
        )

    return run_it


@pytest.fixture(scope="module")
def report(run: Run) -> Callable[..., dict[str, Any]]:
    """What ``run --json`` says; the same call is made once."""
    known: dict[Any, dict[str, Any]] = {}

    def ask(*arguments: str, stdin: bytes = b"") -> dict[str, Any]:
        if (arguments, stdin) not in known:
            done = run("run", "demo", "--json", *SAME, *arguments, stdin=stdin)
            assert done.returncode == 0, done.stderr
            only_notes(done.stderr)
            known[arguments, stdin] = json.loads(done.stdout)
        return known[arguments, stdin]

    return ask


def only_notes(stderr: bytes) -> None:
    for line in stderr.decode().splitlines():
        assert line.startswith("edge-spec: ")
        assert "error" not in line


# --- a reply


def test_a_reply_is_text_that_ends_with_one_newline(run: Run, report: Callable[..., dict[str, Any]]) -> None:
    done = run("run", "demo", *SAME, "-p", PROMPT)
    assert done.returncode == 0
    only_notes(done.stderr)
    assert done.stdout.decode().replace(os.linesep, "\n") == report("-p", PROMPT)["text"].rstrip("\n") + "\n"


def test_json_is_one_object_with_the_documented_keys(report: Callable[..., dict[str, Any]]) -> None:
    found = report("-p", PROMPT)
    assert set(found) == {
        "text",
        "content",
        "reasoning_content",
        "token_ids",
        "prompt_tokens",
        "finish_reason",
        "seed",
        "lossless",
        "identity",
        "profile",
        "timings",
        "speculation",
    }
    assert found["seed"] == 7
    assert found["lossless"] is True
    assert re.fullmatch("(llama|onnx)-[0-9a-f]{8}", found["profile"]["name"])
    assert 0 < len(found["token_ids"]) <= 24
    assert found["finish_reason"] in ("eos", "length")
    assert found["timings"]["tokens_per_s"] > 0
    assert found["speculation"]["asked"] == "auto"


def test_the_same_seed_gives_the_same_text_however_it_speculates(report: Callable[..., dict[str, Any]]) -> None:
    auto = report("-p", PROMPT)
    if auto["identity"] != "bitwise":
        pytest.skip("on this device rows depend on how many are computed together")
    for mode in MODES:
        found = report("-p", PROMPT, "--speculation", mode)
        assert found["speculation"]["mode"] == mode
        for key in ("text", "token_ids", "prompt_tokens", "finish_reason", "profile"):
            assert found[key] == auto[key], mode


def test_the_prompt_comes_from_an_argument_a_file_or_standard_input(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT, "utf-8")
    text = report("-p", PROMPT)["text"]
    assert report("-f", str(file))["text"] == text
    assert report(stdin=PROMPT.encode())["text"] == text
    # Editors on Windows put a mark in front.
    assert report("-f", "-", stdin=b"\xef\xbb\xbf" + PROMPT.encode())["text"] == text


def test_options_do_what_they_say(report: Callable[..., dict[str, Any]]) -> None:
    plain = report("-p", PROMPT)
    assert report("-p", PROMPT, "--raw")["prompt_tokens"] < plain["prompt_tokens"]
    assert report("-p", PROMPT, "--system", "You are a cat.")["prompt_tokens"] > plain["prompt_tokens"]
    place = len(plain["text"]) // 2
    stopped = report("-p", PROMPT, "--stop", plain["text"][place : place + 3])
    assert stopped["finish_reason"] == "stop"
    assert plain["text"].startswith(stopped["text"])
    assert plain["text"][place : place + 3] not in stopped["text"]
    first = plain["token_ids"][0]
    assert report("-p", PROMPT, "--logit-bias", f"{first}=-inf")["token_ids"][0] != first
    assert report("-p", PROMPT, "--kv", "f16")["profile"]["kv"] == "f16/f16"


def test_a_reply_keeps_to_a_grammar_or_a_schema_from_a_file_or_the_command_line(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    schema = {"properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2]}}, "required": ["ok", "n"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    texts = set()
    for given in (json.dumps(schema), str(tmp_path / "schema.json")):
        done = report("-p", PROMPT, "--json-schema", given, "--speculation", "ngram")
        texts.add(done["text"])
        assert done["finish_reason"] == "eos"
        assert json.loads(done["text"]).keys() == {"ok", "n"}
        assert done["speculation"]["accepted"] > 0
    assert len(texts) == 1
    done = report("-p", PROMPT, "--grammar", 'root ::= "yes" | "no"', "--mirostat", "2", "--dry-multiplier", "0.8")
    assert done["text"] in ("yes", "no")


def test_a_reply_continues_to_its_limit_where_it_may_not_end(report: Callable[..., dict[str, Any]]) -> None:
    found = report("-p", PROMPT, "--ignore-eos", "-n", "200")
    assert (len(found["token_ids"]), found["finish_reason"]) == (200, "length")


# --- Ctrl-C


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_an_interrupt_ends_the_reply_soon_and_cleanly(
    surroundings: dict[str, str], report: Callable[..., dict[str, Any]]
) -> None:
    arguments = ["run", "demo", "-p", PROMPT, *SAME, "--ignore-eos", "-n", "900"]
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=surroundings,
        bufsize=0,
    ) as process:
        assert process.stdout is not None
        written = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    only_notes(stderr)
    text = (written + rest).decode()
    whole = report("-p", PROMPT, "--ignore-eos", "-n", "200")["text"]
    n = min(len(text.rstrip()), len(whole))
    assert n > 0
    assert text[:n] == whole[:n]


def run_in(surrounding: str) -> subprocess.CompletedProcess[str]:
    """``run`` called by a program that prepares for it."""
    asked = ["run", "demo", "-p", "x", "-n", "1"]
    return subprocess.run([sys.executable, "-c", surrounding, *asked], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", ["click", "edge_spec.cli.command", "edge_spec.cli.run", "numpy"])
def test_interrupted_while_importing_it_leaves_without_a_word(module: str) -> None:
    interrupted = f"""
import sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
from edge_spec.cli import main
main()
"""
    done = run_in(interrupted)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_an_interrupt_that_a_library_would_swallow_leaves_all_the_same() -> None:
    """As imports and callbacks do, which print or forget an exception."""
    interrupted = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Swallows:
    def find_spec(self, name, path=None, target=None):
        if name == "edge_spec.cli.run":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                print("swallowed")
sys.meta_path.insert(0, Swallows())
from edge_spec.cli import main
main()
"""
    done = run_in(interrupted)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# --- help


@pytest.mark.parametrize("verb", ["", "run", "chat", "check", "bench"])
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*verb.split(), "--help"])
    assert caught.value.code in (0, None)
    said = capsys.readouterr()
    assert said.out.startswith(f"Usage: edge-spec {verb}".rstrip())
    assert said.err == ""


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code in (0, None)
    assert capsys.readouterr().out == f"edge-spec {version('edge-spec')}\n"


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_what_plan_says_is_the_least_is_enough(run: Run, engine: str) -> None:
    planned = run("plan", "demo", "--json", "--threads", "1", "--engine", engine, "--memory", "1GiB")
    for stage, mode in (("fits", "off"), ("drafter", "sequence")):
        # What libraries take differs a little from one process to the next.
        least = json.loads(planned.stdout)["thresholds"][stage] + (1 << 20)
        done = run(
            "run",
            "demo",
            "--json",
            *SAME,
            "--engine",
            engine,
            "--memory",
            str(least),
            "--speculation",
            mode,
            "-p",
            PROMPT,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["speculation"]["mode"] == mode


def test_several_answers_are_the_attempts_of_the_seed(run: Run, probe_cache: Path) -> None:
    import edge_spec

    asked = ["run", "demo", "--answers", "3", *SAME, "-p", PROMPT]
    printed, reported = run(*asked, "--stats"), run(*asked, "--json")
    only_notes(printed.stderr)
    only_notes(reported.stderr)
    assert "3 answers, " in printed.stderr.decode()
    records = [json.loads(line) for line in reported.stdout.splitlines()]
    with edge_spec.load("demo", n_threads=1, cache_dir=probe_cache) as model:
        for attempt, record in enumerate(records):
            alone = model.generate(PROMPT, seed=7, attempt=attempt, max_tokens=24)
            assert record["text"] == alone.read()
            assert (record["answer"], record["attempt"]) == (attempt + 1, attempt)
            assert record["token_ids"] == alone.token_ids
    lone = json.loads(run("run", "demo", "--json", *SAME, "-p", PROMPT).stdout)
    assert lone.keys() == records[0].keys() - {"answer", "attempt"}
    texts = [f"--- answer {n + 1} of 3 ---\n{record['text'].rstrip()}\n" for n, record in enumerate(records)]
    assert printed.stdout.decode() == "".join(texts)


def test_several_answers_to_a_prompt_without_room_are_one_error(run: Run) -> None:
    done = run("run", "demo", "--answers", "2", "--ctx", "16", "-p", PROMPT * 3)
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"raise --ctx" in done.stderr
