"""What the ``edge-spec`` command of one environment plans and prints: what is asked, and how it is compared."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import entry_points
from itertools import product
from pathlib import Path
from typing import Any

__all__ = ["RENAMED", "Found", "calls_of", "chains_of", "commands", "plans", "process_size", "stable"]

Found = Iterator[tuple[str, Any]]
"""Results by name."""

RENAMED = {
    "middle": "intermediate",
    "middle_engine": "intermediate_engine",
    "given_up": "degradations",
    "held_bytes": "session_cache_bytes",
    "least_n_ctx": "min_n_ctx",
}
"""Arguments of ``load``, attributes of a model, roles in plans: the older name, and the newer one."""

_START = """
import sys
from importlib.metadata import entry_points
sys.exit(next(iter(entry_points(group="console_scripts", name="edge-spec"))).load()())
"""


def chains_of(quick: bool) -> Iterable[tuple[str, list[str], int]]:
    """Names, options, and the most plans of each: llama.cpp is asked about every one of its own, which takes time."""
    whole = ["", "--speculation hierarchy"]
    others = ["--ctx 300", "--draft-limit 9", "--speculation tree", "--ctx 700+", "--kv f16/f16", "--chat"]
    if not quick:
        others += ["--speculation off", "--speculation ngram", "--speculation sequence", "--ctx 2048", "--kv q8_0"]
    for engine, option in product(("llama", "onnx"), [*whole, *others]):
        most = (2 if engine == "llama" else 4) if quick else 5 if engine == "llama" and option in others else 50
        if not quick or engine == "onnx" or option in whole:
            yield f"{engine} {option}", ["--engine", engine, *option.split()], most
    mixed = "--draft-engine onnx --middle-engine llama --speculation hierarchy"
    for option, most in (("", 12), ("--no-repack", 3), (mixed, 6)) if not quick else (("", 1),):
        yield f"auto {option}", option.split(), most


def calls_of(prompt: str, quick: bool) -> Iterable[tuple[str, str, list[str], str]]:
    """Names, what is compared of the output, arguments, and standard input."""
    short = "--threads 1 --seed 7 -n 24"

    def call(how: str, text: str, stdin: str = "", *more: str) -> tuple[str, str, list[str], str]:
        said = " ".join((text, *more, *(("<", repr(stdin)) if stdin else ())))
        return said, how, of_the_demo(*text.split(), *more), stdin

    yield call("values", f"run --json --speculation hierarchy {short} -p", "", prompt)
    yield call("values", f"run --json --engine llama --speculation off {short} --raw", prompt)
    yield call("shape", f"run --json {short} -p", "", prompt)
    yield call("text", "run -p Hello --no-such-option")
    yield call("text", "run no-such-model.gguf -p Hello")
    yield call(
        "text", "chat --engine llama --speculation off --threads 1 --session session.chat", "And then?\n/retry\n"
    )
    yield call("plan", "plan --json --memory 200MiB --engine onnx")
    if quick:
        return
    for verb in ("", "run", "chat", "plan", "bench", "check", "doctor"):
        yield call("options", f"{verb} --help")
    mixed = "--engine llama --draft-engine onnx --middle-engine llama --speculation hierarchy"
    yield call("values", f"run --json {mixed} {short} -p", "", prompt)
    yield call("values", f"run --json --engine onnx --kv f16 --ctx 500+ --speculation tree {short} -p", "", prompt)
    yield call("text", f"run {short} --stats --stop dog --temp 0 --system", "", "You are a cat.", "-p", prompt)
    yield call("text", f"run {short} --json-schema", prompt, '{"properties": {"name": {"enum": ["dog", "cat"]}}}')
    yield call("text", f"run {short} --grammar", prompt, 'root ::= "yes" | "no"')
    yield call(
        "text", "chat --seed 3 -n 4", "Hello\nTell me more\n/retry\n/continue\n/undo\n/edit Why?\n/set\n/system\n"
    )
    yield call("text", "chat --seed 3 -n 30", "/nonsense\n")
    yield call("values", "check --json --limit 2 -n 20 --threads 1 --temperatures 0,0.8 --random-limits")
    yield call("shape", "bench --json --limit 1 --rounds 1 -n 8 --threads 1 --modes off,sequence")
    yield call("shape", "doctor --json")
    yield call("text", "--version")
    yield call("text", "run -p", "", " ")
    wrong = (
        "run -p",
        "run --speculation fast -p Hi",
        "run --ctx many -p Hi",
        "run --memory 1MiB -p Hi",
        "nothing",
        "run --kv q4_0 --engine onnx -p Hi",
        "run --logit-bias x -p Hi",
        "run --grammar root::= -p Hi",
        "run --temperature -1 -p Hi",
        "run --draft nothing.gguf -p Hi",
        "run --ctx 64 -n 0 -p Hi",
        "plan --memory 10MiB",
        "plan --memory much",
        "check --modes fast",
        "chat --session a --resume",
        "chat --session session.chat --no-history",
    )
    for text in wrong:
        yield call("text", text)


def plans(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """Plans from plenty of memory down to the least, each time with a byte less than the last one needs."""
    for engine in ("llama", "onnx"):
        # What was tried once is known to plans: they name the profile.
        yield f"run {engine}", called("run", "demo", "-p", "Hello", "--engine", engine, "--seed", "1", "-n", "8")
    for name, arguments, most in part["chains"]:
        chain: list[Any] = []
        budget_bytes, code = 1 << 36, 0
        while len(chain) < most:
            code, printed = called(*of_the_demo("plan", *arguments, "--memory", str(budget_bytes), "--json"))
            if code:
                break
            found = json.loads(printed)
            budget_bytes = found["chosen"]["needed_bytes"] - 1
            chain.append(plan_of(found))
        yield name, {"chain": chain, "code": code}


def of_the_demo(verb: str = "", *arguments: str) -> list[str]:
    """A command that names the demo family, unless it names a model: versions differ in what they use by default."""
    takes_one = verb in ("run", "chat", "check", "bench", "plan") and "--help" not in arguments
    names_one = bool(arguments) and not arguments[0].startswith("-")
    return [verb, *(["demo"] if takes_one and not names_one else []), *arguments]


def called(*arguments: str) -> tuple[int, str]:
    """Exit code and output of the command, which runs in this process."""
    command = next(iter(entry_points(group="console_scripts", name="edge-spec"))).load()
    printed = io.StringIO()
    with process_size(), redirect_stdout(printed), redirect_stderr(io.StringIO()):
        try:
            command(list(arguments))
        except SystemExit as end:
            return int(end.code or 0), printed.getvalue()
    return 0, printed.getvalue()


@contextmanager
def process_size(n_bytes: int = 96 << 20) -> Iterator[None]:
    """This process seems to be of that size (Linux): its own changes from call to call, and would move plans."""
    lines = {"Rss": n_bytes, "Private_Clean": 0, "Private_Dirty": n_bytes, "Anonymous": n_bytes}
    text = "".join(f"{name}: {size >> 10} kB\n" for name, size in lines.items())
    really = io.open

    def instead(file: Any, *arguments: Any, **options: Any) -> Any:
        is_ours = str(file) == "/proc/self/smaps_rollup"
        return io.StringIO(text) if is_ours else really(file, *arguments, **options)

    setattr(io, "open", instead)  # noqa: B010
    try:
        yield
    finally:
        setattr(io, "open", really)  # noqa: B010


def plan_of(found: dict[str, Any]) -> dict[str, Any]:
    """A plan without wording; what follows the size of the process stands under ``bytes``."""
    chosen = found["chosen"]
    kept = {name: chosen[name] for name in ("choices", "tables", "lines")}
    sizes = {name: size for name, size in chosen.items() if name.endswith("_bytes")}
    return kept | {
        "keys": shape(found),
        "engine": found["engine"],
        "profile": found["profile"],
        "runners_up": [other["choices"] for other in found["runners_up"]],
        "bytes": {**sizes, "thresholds": found["thresholds"]},
    }


def commands(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """The command in processes of its own: exit codes and what it prints."""
    shutil.copy(others / part["session"], own / "session.chat")
    for name, how, arguments, stdin in part["calls"]:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _START, *arguments], input=stdin.encode(), capture_output=True, cwd=own
        )
        said, out = done.stderr.decode("utf-8", "replace"), done.stdout.decode("utf-8", "replace")
        shown = _SHOWN[how](out) if done.returncode == 0 else out
        yield name, {"code": done.returncode, "error": "error:" in said, "notes": said.count(": note:"), "out": shown}


def stable(value: Any) -> Any:
    """A JSON value without its fractions, most of which are times."""
    if isinstance(value, dict):
        return {key: stable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [stable(each) for each in value]
    return "number" if isinstance(value, float) else value


def shape(value: Any) -> Any:
    """Names and types of a JSON value; of a count by numbers only that it is one."""
    if isinstance(value, dict):
        return {"a number" if key.isdigit() else key: shape(each) for key, each in value.items()}
    return [shape(each) for each in value[:1]] if isinstance(value, list) else type(value).__name__


def options(page: str) -> dict[str, bool]:
    """Names of options on a page of help, which begin its lines."""
    found = re.findall(r"^ +(--?[\w-]+(?:, --?[\w-]+)*)", page, re.MULTILINE)
    return {name: True for names in found for name in names.split(", ")}


_SHOWN: dict[str, Callable[[str], Any]] = {
    "text": lambda out: out,
    "values": lambda out: [stable(json.loads(line)) for line in out.splitlines()],
    "shape": lambda out: [shape(json.loads(line)) for line in out.splitlines()],
    "plan": lambda out: plan_of(json.loads(out)),
    "options": lambda out: {"options": options(out)},
}
