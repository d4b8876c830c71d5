"""Laws of exit codes: 2 for what cannot be meant so on any computer, 1 for what fails on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from edge_spec.cli import main
from edge_spec.cli.command import root, verb
from edge_spec.cli.folders import ModelName
from edge_spec.cli.help import Count
from edge_spec.cli.options import _Context

Leaves = Callable[..., str]


@pytest.fixture
def leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Leaves:
    """Run a command in a home of its own: it leaves with a code, and a line on standard error."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def of(code: int, *arguments: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        shown = capsys.readouterr().err
        assert (left.value.code, len(shown.splitlines())) == (code, 1), f"{arguments}: {left.value.code}, {shown}"
        return shown

    return of


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A verb, or the verbs below it."""
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            yield from commands(f"{name} {below}", each)
    else:
        yield name, command


def verbs() -> dict[str, click.Command]:
    group = root()
    named = {name: verb(name) for name in group.list_commands(click.Context(group))}
    return {
        name: each for top, command in named.items() if command is not None for name, each in commands(top, command)
    }


VERBS = verbs()
ARGUMENTS: dict[str, list[str]] = {
    "rm": ["nothing"],
    "pull": ["nothing"],
    "quantize": ["demo", "out.gguf", "--type", "Q4_0"],
    "drafter make": ["demo", "--texts", "nowhere", "--out", "out"],
    "drafter pack": ["demo", "--texts", "nowhere", "--out", "out.npz"],
    "drafter export": ["head.gguf", "--llama-cpp", "out.gguf"],
    "completion": ["bash"],
}
"""Arguments that a verb cannot do without."""


def wrong(param: click.Option) -> list[str]:
    """Values that an option can have on no computer."""
    if isinstance(param.type, Count):
        return ["x", "0", "-1", "1.5"]
    if isinstance(param.type, click.types.IntParamType):
        return ["x", "1.5"]
    if isinstance(param.type, click.types.FloatParamType):
        return ["x", *(["nan"] if param.name != "passes" else [])]
    if isinstance(param.type, click.Choice | _Context):
        return ["", "x"]
    if isinstance(param.type, ModelName) or param.name in ("model_dir", "cache_dir"):
        return [""]
    texts = {"memory": "lots", "kv": "f15", "max_body": "x", "modes": "x", "temperatures": "x", "logit_bias": "x"}
    return ["", texts[param.name]] if param.name in texts else []


CASES = [
    (name, flag, value)
    for name, command in VERBS.items()
    for param in command.params
    if isinstance(param, click.Option) and not param.is_flag
    for flag in param.opts[-1:]
    for value in wrong(param)
]


@pytest.mark.long
@pytest.mark.parametrize("name", VERBS)
def test_what_cannot_be_meant_leaves_with_2(name: str, leaves: Leaves) -> None:
    rest = ARGUMENTS.get(name, [])
    assert "--nonsense" in leaves(2, *name.split(), *rest, "--nonsense")
    for _, flag, value in [each for each in CASES if each[0] == name]:
        leaves(2, *name.split(), *rest, f"{flag}={value}")


@pytest.mark.parametrize(
    "line",
    [
        ["run", "-p", ""],
        ["run", "demo", " "],
        ["run", "-p", "a", "-f", "b"],
        ["run", "-p", "a", "--grammar", ""],
        ["run", "-p", "a", "--grammar", "root ::= x", "--json-schema", "{}"],
        ["run", "-p", "a", "--system", "\udce4"],
        ["run", "", "-p", "a"],
        ["chat", "--session", "a", "--resume"],
        ["pull", "demo", "--draft", "a", "--no-drafts"],
        ["nonsense"],
        ["run", "--threads"],
    ],
)
def test_what_contradicts_itself_leaves_with_2(line: list[str], leaves: Leaves) -> None:
    leaves(2, *line)


@pytest.mark.parametrize("name", [name for name, each in VERBS.items() if any(p.name == "model" for p in each.params)])
def test_a_model_that_is_not_there_leaves_with_1(name: str, leaves: Leaves) -> None:
    rest = {"run": ["-p", "a"]}.get(name, [] if name not in ARGUMENTS else ARGUMENTS[name][1:])
    assert "no-such.gguf" in leaves(1, *name.split(), "no-such.gguf", *rest)


@pytest.mark.parametrize(
    "line",
    [
        ["run", "-f", "nowhere"],
        ["run", "-f", "empty"],
        ["run", "-p", "a", "--grammar", "nowhere"],
        ["run", "-p", "a", "--json-schema", "nowhere"],
        ["check", "demo", "--prompts", "nowhere"],
        ["bench", "demo", "--prompts", "nowhere"],
        ["chat", "demo", "--session", "nowhere/a.chat"],
        ["drafter", "make", "demo", "--texts", "nowhere", "--out", "out"],
        ["drafter", "pack", "demo", "--texts", "nowhere", "--out", "out.npz"],
        ["drafter", "export", "nowhere", "--llama-cpp", "out"],
        ["quantize", "demo", "nowhere/out", "--type", "Q4_0"],
        ["rm", "nothing"],
        ["run", "empty", "-p", "a"],
    ],
)
def test_a_file_that_is_not_there_or_not_right_leaves_with_1(line: list[str], leaves: Leaves, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    leaves(1, *line)


@pytest.mark.parametrize("text", ["ctx = -3", "ctx = ", "memroy = 3", "[run]\nseed = true", "[nonsense]\na = 1"])
def test_settings_are_files(text: str, leaves: Leaves, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text(text)
    monkeypatch.setenv("EDGE_SPEC_CONFIG", str(tmp_path / "config.toml"))
    assert "config.toml" in leaves(1, "run", "demo", "-p", "a")


def test_a_mistyped_verb_is_answered_with_the_likely_one(leaves: Leaves) -> None:
    assert "'chatt'. Did you mean 'chat'?" in leaves(2, "chatt")
    assert "'lst'. Did you mean 'list'?" in leaves(2, "cache", "lst")
    assert "mean" not in leaves(2, "xyzzy")
