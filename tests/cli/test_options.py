"""Laws of options: help and API agree, messages speak of options, and a value that cannot be is wrong usage."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import click
import pytest

from edge_spec.cli import main
from edge_spec.cli.wording import described, in_options, option_of, sampling_in_words
from edge_spec.controller.options import LOAD_OPTIONS
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import Arguments, Sentence, SettingsError
from edge_spec.evaluation.bench import bench
from edge_spec.evaluation.check import check
from edge_spec.generation.options import REPLY_OPTIONS
from edge_spec.loading import load
from edge_spec.sampling import SamplerSettings
from edge_spec.server.errors import in_fields
from edge_spec.server.settings import ServerSettings

VERBS = ("run", "chat", "check", "bench", "plan", "serve")
LOADING = ("run", "chat", "check", "bench", "plan")


def command_of(verb: str) -> click.Command:
    found = import_module(f"edge_spec.cli.{verb}").command
    assert isinstance(found, click.Command)
    return found


def options_of(verb: str) -> list[click.Option]:
    return [param for param in command_of(verb).params if isinstance(param, click.Option) and not param.hidden]


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code of a command that fails, and the line that says why."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("edge-spec: error: ")
    return int(left.value.code or 0), line.removeprefix("edge-spec: error: ")


# --- help


def defaults_of(verb: str) -> dict[str, Any]:
    """Defaults of the API by the options that set them."""

    def of(function: Callable[..., Any], *names: str) -> dict[str, Any]:
        return {option_of(name): signature(function).parameters[name].default for name in names}

    found = {**of(load, "engine"), **of(ModelSettings, "n_threads", "kv_k")}
    if verb == "serve":
        found |= of(ServerSettings, "host", "port", "max_waiting", "timeout_s")
    if verb in ("run", "chat", "plan", "serve"):
        found |= of(load, "speculation")
    if verb != "plan":
        found |= of(
            SamplerSettings, *(signature(SamplerSettings).parameters.keys() - {"seed", "attempt", "logit_bias"})
        )
        found["--dry-breaker"] = json.dumps(found["--dry-breaker"])[1:-1]
    if verb == "bench":
        found |= of(bench, "rounds", "max_tokens", "seed")
    if verb == "check":
        found |= of(check, "max_tokens", "seed") | {
            "--temperatures": ",".join(f"{each:g}" for each in signature(check).parameters["temperatures"].default)
        }
        del found["--temperature"]
    return {flag: f"{value:g}" if isinstance(value, float) else str(value) for flag, value in found.items()}


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
def test_help_and_api_agree_on_every_default(verb: str) -> None:
    shown = {}
    for option in options_of(verb):
        found = re.search(r"\[default: (.*)\]$", option.help or "")
        flag = next(opt for opt in option.opts if opt.startswith("--"))
        if found is not None and (flag in defaults_of(verb) or re.fullmatch(r"[-0-9.,]+|auto", found[1])):
            shown[flag] = found[1]
    own = {"--limit": "8"} if verb == "bench" else {}
    assert shown == {**defaults_of(verb), **own}


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_stands_in_a_section_of_the_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert "Options:" not in lines
    assert lines.index("Other:") > max(n for n, line in enumerate(lines) if line.startswith("  --"))
    for option in options_of(verb):
        assert any(line.startswith("  ") and option.opts[0] in line for line in lines), option.opts


def test_without_arguments_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([])
    assert not left.value.code
    said = capsys.readouterr()
    assert said.out.startswith("Usage: edge-spec") and said.err == ""
    for verb in VERBS:
        assert re.search(rf"^  {verb} ", said.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("verb", "below"), [("cache", ["clear", "list", "verify"]), ("drafter", ["export", "make", "pack"])]
)
def test_a_verb_of_verbs_alone_lists_them(verb: str, below: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb])
    assert not left.value.code
    said = capsys.readouterr()
    assert said.out.startswith(f"Usage: edge-spec {verb}") and said.err == ""
    listed = said.out[said.out.index("Commands:") :].splitlines()[1:]
    assert [line.split()[0] for line in listed] == below
    assert not any(line.endswith("...") for line in listed)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["What is the capital of France?"], "for a prompt use -p"),
        (["Why?"], "for a prompt use -p"),
        (["no-such-model"], "known names: "),
        (["dmo"], "did you mean demo? `edge-spec list` shows"),
        (["no such model", "-p", "Hi"], "known names: "),
    ],
)
def test_run_with_a_question_for_a_model_tells_how_to_ask_it(
    typed: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", *typed])
    assert left.value.code == 1
    assert capsys.readouterr().err.startswith(f"edge-spec: error: there is no model '{typed[0]}'; {hint}")


def test_python_runs_it_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "edge_spec", "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: edge-spec")


def test_help_waits_for_no_library() -> None:
    heavy = ("numpy", "llama_cpp", "onnxruntime", "rich", "prompt_toolkit", "edge_spec.loading")
    code = f"""
import sys
from edge_spec.cli import main
try:
    main(["--help"])
finally:
    print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_verb_waits_for_the_metadata_of_packages() -> None:
    """Reading it imports a parser of e-mails."""
    code = "import sys, edge_spec.cli.command; print([name for name in sys.modules if 'metadata' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


@pytest.mark.long
def test_replies_without_a_grammar_do_without_its_library(probe_cache: Path) -> None:
    code = """
import sys
from edge_spec.cli import main
for asked in ([], ["--grammar", 'root ::= "a"']):
    try:
        main(["run", "demo", "--threads", "1", "--ctx", "64", "-n", "1", "-p", "A", *sys.argv[1:], *asked])
    except SystemExit as left:
        print(left.code, "llguidance" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "--cache-dir", str(probe_cache)], capture_output=True, text=True, timeout=100
    )
    assert re.findall("^0 (True|False)$", done.stderr, re.MULTILINE) == ["False", "True"]


# --- messages


@pytest.mark.parametrize(
    ("said", "in_python", "shown"),
    [
        (Sentence("raise {n_ctx}"), "raise `n_ctx`", "raise --ctx"),
        (
            Sentence("use {instead}, or less", instead=Arguments(engine="llama")),
            "use `engine='llama'`, or less",
            "use --engine llama, or less",
        ),
        (
            Sentence("{it} fits", it=Arguments(n_ctx=4096, kv_k="f16", kv_v="q8_0", repack=False)),
            "`n_ctx=4096, kv_k='f16', kv_v='q8_0', repack=False` fits",
            "--ctx 4096 --kv f16/q8_0 --no-repack fits",
        ),
        (Sentence("give {it}", it=Arguments(raw=True)), "give `raw=True`", "give --raw"),
        (Sentence("or {requantize}"), "or `requantize`", "or --requantize"),
        (Sentence("{retry()} writes another one"), "`retry()` writes another one", "/retry writes another one"),
        (Sentence("or {close()} it"), "or `close()` it", "or `close()` it"),
        (
            Sentence("{file} is {why}", file="{n_ctx}", why=Sentence("above {memory}")),
            "{n_ctx} is above `memory`",
            "{n_ctx} is above --memory",
        ),
        ("`n_ctx=1` is a file's name", "`n_ctx=1` is a file's name", "`n_ctx=1` is a file's name"),
    ],
)
def test_messages_of_the_library_speak_of_options(said: str, in_python: str, shown: str) -> None:
    assert (str(said), in_options(said)) == (in_python, shown)


def test_every_argument_is_an_option_of_some_verb() -> None:
    known = {
        flag
        for verb in (*VERBS, "quantize")
        for option in options_of(verb)
        for flag in (*option.opts, *option.secondary_opts)
    }
    told = [name for name, each in (LOAD_OPTIONS | REPLY_OPTIONS).items() if each.flag is not None]
    others = ("n", "timeout_s", "max_body_bytes", "host", "port", "api_key", "insecure", "requantize", "system")
    assert {option_of(name) for name in (*told, *others)} <= known


def test_an_error_about_an_argument_names_it_in_every_world() -> None:
    error = SettingsError("is 3 and must be at most 1", argument="dry_breakers", hint=Sentence("or set {kv_k}"))
    assert str(error) == "dry_breakers is 3 and must be at most 1; or set `kv_k`"
    assert described(error) == "--dry-breaker is 3 and must be at most 1; or set --kv"
    assert in_fields(error) == "dry_breakers is 3 and must be at most 1; or set kv_k"


# --- values that cannot be

OF_MODELS = (
    ("--kv", "q3"),
    ("--kv", "f16/q3"),
    ("--threads", "-1"),
    ("--threads-batch", "9999"),
    ("--ctx", "0"),
    ("--ctx", "many"),
    ("--engine", "magic"),
    ("--draft-limit", "0"),
    ("--memory", "banana"),
    ("--memory", "0"),
)
OF_REPLIES = (
    ("--max-tokens", "0"),
    ("--max-tokens", "x"),
    ("--seed", str(1 << 64)),
    ("--top-p", "3"),
    ("--mirostat", "1"),
)
OTHERS = {
    "serve": ["demo"],
    "pair": ["demo", "demo"],
    "quantize": ["demo", "out.gguf", "--type", "Q4_0"],
    "info": ["demo"],
}
"""Verbs that load models or read their headers otherwise, and what they need to be told."""


@pytest.mark.parametrize(
    ("verb", "option", "value"),
    [(verb, *pair) for verb in LOADING for pair in OF_MODELS]
    + [(verb, *pair) for verb in ("run", "chat", "check", "bench") for pair in OF_REPLIES]
    + [
        ("run", "--temp", "-1"),
        ("bench", "--temperature", "-1"),
        ("check", "--temperatures", "0,-1"),
    ]
    + [
        ("check", "--temperatures", "hot"),
        ("bench", "--rounds", "0"),
        ("check", "--modes", "magic"),
    ],
)
def test_a_value_that_cannot_be_is_named_as_its_option(
    verb: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = ["-p", "A"] if verb == "run" else []
    few = ["--limit", "1"] if verb in ("check", "bench") else []
    code, line = failed(capsys, verb, "demo", option, value, *prompt, *few)
    assert code == 2
    names = {"--temp": "--temperature"}
    assert re.search(rf"{names.get(option, option)}(?![\w-])", line), line
    assert not re.search(r"\b(n_ctx|kv_k|kv_v|n_threads\w*|max_tokens|draft_limit|top_p)\b", line), line


@pytest.mark.parametrize(
    ("verb", "option", "value"),
    [
        (verb, option, value)
        for verb in OTHERS
        for option, value in (*OF_MODELS, *OF_REPLIES)
        if any(option in known.opts for known in options_of(verb))
    ],
)
def test_other_verbs_refuse_it_as_well_before_they_do_anything(
    verb: str,
    option: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, line = failed(capsys, verb, *OTHERS[verb], option, value)
    assert code == 2
    assert re.search(rf"{option}(?![\w-])", line), line
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "demo", "--kv", "q3"], "--kv"),
        (["run", "demo", "--memory", "banana"], "--memory"),
        (["run", "no-such.gguf"], "no-such.gguf"),
        (["run", "demo", "--draft", "no-such.gguf"], "no-such.gguf"),
        (["run", ""], "is not a name or a path"),
        (["run", "demo", "--ctx", "1", "-p", "A"], "--ctx is 1"),
        (["run", "demo", "--stop=", "-p", "A"], "--stop must be"),
        (["run", "demo", "--grammar", "root", "-p", "A"], "--grammar"),
        (["run", "demo", "--json-schema", "[]", "-p", "A"], "--json-schema"),
        (["run", "--model", "demo"], "write edge-spec run MODEL"),
        (["serve", "no-such.gguf"], "no-such.gguf"),
        (["serve", "demo", "--kv", "q3"], "--kv"),
        (["drafter", "make", "no-such.gguf", "--texts", ".", "--out", "o"], "no-such.gguf"),
        (["drafter", "make", "demo", "--texts", "no-such", "--out", "o"], "--texts is 'no-such'"),
        (["drafter", "make", "demo", "--texts", ".", "--out", "o", "--width", "33"], "--width is 33"),
        (["drafter", "pack", "no-such.gguf", "--texts", ".", "--out", "o"], "no-such.gguf"),
        (["drafter", "pack", "demo", "--texts", "no-such", "--out", "o"], "--texts is 'no-such'"),
    ],
)
def test_what_was_typed_comes_before_prompts_and_extras(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert says in failed(capsys, *arguments)[1]


def test_short_options_are_named_too(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("run", "chat", "check", "bench"):
        code, line = failed(capsys, verb, "demo", "-n", "0")
        assert (code, "'-n'" in line) == (2, True)


def test_every_verb_finds_a_model_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default is a name that ``load`` knows, whichever models are installed."""
    code, line = failed(capsys, "plan", "--memory", "10MiB")
    assert (code, "SmolLM2" in line) == (1, True)


def test_a_sampler_is_told_with_numbers_of_any_size() -> None:
    told = sampling_in_words({"temperature": 0.8, "top_k": 2_000_000, "dry_base": 10**400, "dry_breakers": ()})
    assert told == f"temperature 0.8, top_k 2000000, dry_base 1{'0' * 400}, dry_breakers none"
