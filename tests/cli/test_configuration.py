"""Laws of settings: what is typed comes before variables, these before the file, and mistakes are named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from edge_spec.cli import main
from edge_spec.cli.command import root, verb
from edge_spec.cli.configuration import COMMON, Configuration, defaults_of


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints, in a home of its own; ``code`` is what it should leave with."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in COMMON:
        monkeypatch.delenv(f"EDGE_SPEC_{name.upper().replace('-', '_')}", raising=False)

    def of(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        shown = capsys.readouterr()
        assert (left.value.code or 0) == code, shown.err
        return shown.err if code else shown.out

    return of


def configure(folder: Path, text: str) -> None:
    (folder / "edge-spec").mkdir(exist_ok=True)
    (folder / "edge-spec" / "config.toml").write_text(text)


def context(said: Callable[..., str], *arguments: str) -> int:
    return int(json.loads(said("plan", "--json", *arguments))["chosen"]["choices"]["context"])


def test_every_setting_is_an_option_or_argument_of_a_verb() -> None:
    command = verb("run")
    assert command is not None
    flags = {flag for param in command.params if isinstance(param, click.Option) for flag in param.opts}
    assert {f"--{name}" for name in COMMON} - flags == {"--model"}


@pytest.mark.long
def test_what_is_typed_comes_before_variables_and_these_before_the_file(
    said: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, 'model = "demo"\nctx = 300\nmemory = "1GiB"\n[plan]\nspeculation = "off"\n[run]\nseed = 4\n')
    assert context(said) == 300
    assert json.loads(said("plan", "--json"))["chosen"]["choices"]["speculation"] == "off"
    monkeypatch.setenv("EDGE_SPEC_CTX", "400")
    assert context(said) == 400
    assert context(said, "--ctx", "500") == 500
    shown = said("config")
    assert "EDGE_SPEC_CTX" in shown and "config.toml" in shown and "plan.speculation" in shown
    settings = json.loads(said("config", "--json"))["settings"]
    assert settings == {
        "model": "demo",
        "ctx": "400",
        "memory": "1GiB",
        "plan": {"speculation": "off"},
        "run": {"seed": 4},
    }
    (tmp_path / "other.toml").write_text("ctx = 350")
    monkeypatch.delenv("EDGE_SPEC_CTX")
    monkeypatch.setenv("EDGE_SPEC_CONFIG", str(tmp_path / "other.toml"))
    assert context(said, "demo") == 350


def test_folders_are_settings(said: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, f'cache-dir = "{tmp_path / "caches"}"\nmodel_dir = "{tmp_path / "models"}"\n')
    folders = json.loads(said("config", "--json"))["folders"]
    assert folders == {"cache-dir": str(tmp_path / "caches"), "model-dir": str(tmp_path / "models")}
    assert str(tmp_path / "caches") in said("cache", "clear")
    monkeypatch.setenv("EDGE_SPEC_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert str(tmp_path / "elsewhere") in said("cache", "clear")


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("memory 3", "config.toml is not TOML", 1),
        ("[plna]\nmemory = 3", "config.toml: there is no verb 'plna' for [plna]", 1),
        ("ctx = -3", "config.toml: ctx is -3 and must be a whole number of at least 2; leave it out", 1),
        ("memroy = 3", "'memroy' cannot be set for all verbs; these can: model", 1),
        ("[plan]\nmemroy = 3", "[plan] has 'memroy', which is not one of its options; see `edge-spec plan --help`", 1),
        ("ctx = 'many'", "config.toml: ctx is 'many': 'many' is not a number of tokens; write 4096, or 4096+ for", 1),
        ("threads = 'many'", "config.toml: threads is 'many': 'many' is not a valid integer; correct it", 1),
        ("threads = 513", "config.toml: threads is 513 and must be a whole number from 0 to 512; correct it", 1),
        ("threads = 2.5", "config.toml: threads is 2.5: '2.5' is not a valid integer; correct it", 1),
        ("threads = true", "config.toml: threads is true and must be a number; correct it", 1),
        ("threads = 2020-02-02", "config.toml: threads is 2020-02-02 and must be a number; correct it", 1),
        ("memory = 'lots'", "config.toml: memory is 'lots', which is not a valid size; write 2GiB, 512MiB or", 1),
        ("memory = true", "config.toml: memory is true and must be text; correct it", 1),
        ("cache-dir = ''", "config.toml: cache-dir is '' and must be a name or a path; correct it", 1),
        ("engine = 'steam'", "config.toml: engine is 'steam': 'steam' is not one of", 1),
        ("[plan]\nkv = 'f15'", "config.toml: [plan] kv is 'f15' and must be one of auto, f32, f16, ", 1),
        ("[plan]\nverbose = 3", "config.toml: [plan] verbose is 3 and must be true or false; correct it", 1),
        ("threads = [1]", "config.toml: threads is [1] and must be a single value", 1),
    ],
)
def test_a_mistake_in_the_file_is_named(
    text: str, line: str, code: int, said: Callable[..., str], tmp_path: Path
) -> None:
    configure(tmp_path, text)
    assert line in said("plan", "demo", code=code)


ARGUMENTS = {
    "pair": ["demo"],
    "info": ["demo"],
    "rm": ["demo"],
    "quantize": ["demo", "out.gguf", "--type", "Q4_0"],
    "cache list": [],
    "cache clear": [],
    "cache verify": [],
    "drafter make": ["demo", "--texts", ".", "--out", "."],
    "drafter pack": ["demo", "--texts", ".", "--out", "out.npz"],
    "drafter export": ["head.gguf", "--llama-cpp", "out.gguf"],
    "completion": ["bash"],
}


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A verb, or the verbs below it."""
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            yield from commands(f"{name} {below}", each)
    else:
        yield name, command


@pytest.mark.parametrize(
    "settings",
    [{"ctx": "4096+"}, {"threads": 0}, {"max-tokens": 2000}, {"memory": "3GiB"}, {"engine": "llama"}, {"ctx": 4096}],
)
def test_a_setting_for_all_verbs_is_right_for_each(settings: dict[str, Any], tmp_path: Path) -> None:
    """A verb takes what it understands in the same sense, and goes without anything else."""
    found = Configuration(path=tmp_path / "config.toml", common=settings, verbs={}, sources={})
    group, n_taken = root(), 0
    # Commands remember what the first context makes of their help: it has to be the usual one.
    parent = click.Context(group, **group.context_settings)
    for verb_name in group.list_commands(parent):
        top = verb(verb_name)
        assert top is not None
        for name, command in commands(verb_name, top):
            map_of = defaults_of(command, verb_name, found)
            taken = command.make_context(name, list(ARGUMENTS.get(name, [])), parent=parent, default_map=map_of).params
            n_taken += bool(map_of)
            if "max-tokens" in settings:
                assert ("max_tokens" in map_of) == (name in ("run", "chat", "serve"))
            if "threads" in settings and "n_threads" in taken:
                assert taken["n_threads"] == 0
    assert n_taken >= 3


WRONG = """\
memroy = 3
ctx = 300
threads = [1]
model-dir = 3
[plam]
ctx = 3
[plan]
memroy = 3
speculation = "off"
spexulation = "on"
[cache]
clean = 1
[cache.list]
josn = true
"""


def test_settings_are_shown_with_every_mistake_in_them(
    tmp_path: Path, said: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path, WRONG)
    path = tmp_path / "edge-spec" / "config.toml"
    known = ", ".join(COMMON)
    mistakes = [
        f"{path}: 'memroy' cannot be set for all verbs; these can: {known}; "
        "put others under the name of their verb, such as [run]",
        f"{path}: threads is [1] and must be a single value; correct it",
        f"{path}: model-dir is 3 and must be a path; correct it",
        f"{path}: there is no verb 'plam' for [plam]; see `edge-spec --help`",
        f"{path}: [plan] has 'memroy', which is not one of its options; see `edge-spec plan --help`",
        f"{path}: [plan] has 'spexulation', which is not one of its options; see `edge-spec plan --help`",
        f"{path}: [cache] has 'clean', which is not one of its verbs; see `edge-spec cache --help`",
        f"{path}: [cache.list] has 'josn', which is not one of its options; see `edge-spec cache list --help`",
    ]
    for json_too in ((), ("--json",)):
        with pytest.raises(SystemExit) as left:
            main(["config", *json_too])
        assert left.value.code == 1
        shown = capsys.readouterr()
        if json_too:
            found = json.loads(shown.out)
            assert found["mistakes"] == mistakes
            assert (found["settings"]["ctx"], found["settings"]["plan"]["memroy"]) == (300, 3)
        else:
            assert shown.err.splitlines() == [f"edge-spec: error: {mistake}" for mistake in mistakes]
            cells = {tuple(line.split()) for line in shown.out.splitlines()}
            assert {("memroy", "3", "config.toml"), ("plan.spexulation", "on", "config.toml")} <= cells
    # The other verbs stop at the first one.
    assert said("plan", code=1) == f"edge-spec: error: {mistakes[0]}\n"
    configure(tmp_path, "[cache]\nclean = 1")
    assert said("cache", "list", code=1) == f"edge-spec: error: {mistakes[6]}\n"


def test_settings_without_a_mistake_are_shown_without_one(said: Callable[..., str], tmp_path: Path) -> None:
    configure(tmp_path, "ctx = 300")
    assert json.loads(said("config", "--json"))["mistakes"] == []


def test_a_model_that_is_not_there_matters_where_it_is_used(said: Callable[..., str], tmp_path: Path) -> None:
    configure(tmp_path, 'model = "qwen3-4b"')
    assert json.loads(said("config", "--json"))["mistakes"] == []
    assert "target-q4_0" in said("info", "demo")
    assert "qwen3-4b is not on this computer" in said("run", "-p", "Hi", code=1)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str, said: Callable[..., str]) -> None:
    text = said("completion", shell)
    assert "_EDGE_SPEC_COMPLETE" in text and f"{shell}_complete" in text


def test_verbs_options_and_models_are_completed(
    said: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def completed(*words: str) -> set[str]:
        monkeypatch.setenv("_EDGE_SPEC_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(("edge-spec", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return {line.partition(",")[2] for line in said().splitlines()}

    assert completed("p") == {"plan", "pull", "pair"}
    assert "--speculation" in completed("run", "--spec")
    assert completed("run", "de") == {"demo"}
    assert completed("pull", "qwen3-4") == {"qwen3-4b"}
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "family.json").write_text("{}")
    configure(tmp_path, f'model-dir = "{tmp_path / "models"}"')
    assert completed("rm", "") == completed("info", "mi") == {"mine"}
