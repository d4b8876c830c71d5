"""Laws of the sampler that is recommended for a model: every way to ask for text uses it where nothing is given."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

import edge_spec
from edge_spec.cli import main
from edge_spec.cli.llm_plugin import EdgeSpecModel
from edge_spec.generation.request import ReplyRequest
from edge_spec.models import inspect, resolve
from edge_spec.sampling import SamplerSettings
from edge_spec.server.running import ModelServer
from edge_spec.server.settings import ServerSettings

pytestmark = pytest.mark.long

RECOMMENDED: dict[str, Any] = {
    "temperature": 0.6,
    "repeat_penalty": 1.3,
    "dry_multiplier": 0.5,
    "dry_penalty_window": 40,
    "dry_breakers": ["\n"],
}
FEW = ("-n", "4", "--threads", "1", "--engine", "llama", "--ctx", "256")
ONCE = ("--limit", "1", "--rounds", "1")

Asked = list[SamplerSettings]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The different settings, seeds aside, of all replies that are asked for; one is recommended for the target."""
    target, found = inspect(resolve("demo")).fingerprint, Asked()
    accept = ReplyRequest.__post_init__

    def remember(request: ReplyRequest) -> None:
        accept(request)
        settings = replace(request.settings, seed=0, attempt=0)
        if settings not in found:
            found.append(settings)

    monkeypatch.setattr("edge_spec.models.inspection.of_edge_spec", lambda of: RECOMMENDED if of == target else {})
    monkeypatch.setattr(ReplyRequest, "__post_init__", remember)
    return found


@pytest.fixture
def command(
    probe_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs a verb for the demo family, and returns what it prints."""

    def run(verb: str, *options: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hi\n")))
        with pytest.raises(SystemExit) as left:
            main([verb, "demo", *FEW, "--cache-dir", str(probe_cache), *options])
        assert not left.value.code
        return capsys.readouterr().out

    return run


WRITING: list[tuple[str, ...]] = [
    ("run", "-p", "Hi"),
    ("run", "-p", "Hi", "--answers", "2"),
    ("chat",),
    ("bench", *ONCE, "--modes", "ngram"),
]


@pytest.mark.parametrize("verb", [*WRITING, ("pair", *ONCE, "--no-remember")], ids=" ".join)
def test_a_verb_samples_as_recommended(verb: tuple[str, ...], asked: Asked, command: Callable[..., str]) -> None:
    command(*verb)
    assert asked == [SamplerSettings(**RECOMMENDED)]


@pytest.mark.parametrize("verb", WRITING, ids=" ".join)
def test_what_is_given_goes_before_it_field_by_field(
    verb: tuple[str, ...], asked: Asked, command: Callable[..., str]
) -> None:
    command(*verb, "--temperature", "0", "--dry-multiplier", "0", "--top-k", "7")
    assert asked == [SamplerSettings(**RECOMMENDED | {"temperature": 0.0, "dry_multiplier": 0.0, "top_k": 7})]


def test_check_takes_its_temperatures_and_else_what_is_recommended(asked: Asked, command: Callable[..., str]) -> None:
    command("check", "--limit", "1", "--modes", "ngram", "--temperatures", "0,1", "--repeat-penalty", "1.1")
    assert asked == [SamplerSettings(**RECOMMENDED | {"temperature": t, "repeat_penalty": 1.1}) for t in (0.0, 1.0)]


def test_bench_says_how_it_samples(asked: Asked, command: Callable[..., str]) -> None:
    bench = ("bench", *ONCE, "--modes", "ngram", "--dry-multiplier", "0")
    assert command(*bench).splitlines()[0] == (
        'sampler: temperature 0.6, repeat_penalty 1.3, dry_penalty_window 40, dry_breakers "\\n"; '
        "else edge-spec's defaults"
    )
    verdict = json.loads(command(*bench, "--json").splitlines()[-1])["verdict"]
    assert verdict["sampling"] == {name: value for name, value in RECOMMENDED.items() if name != "dry_multiplier"}


def test_chat_shows_it_as_its_settings(
    asked: Asked, probe_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = b"/set\n/set temperature 0.1\n/set temperature default\nHi\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
    with pytest.raises(SystemExit):
        main(["chat", "demo", *FEW, "--cache-dir", str(probe_cache)])
    shown = capsys.readouterr()
    assert "  repeat_penalty      1.3\n" in shown.out + shown.err
    assert "  temperature         0.6\n" in shown.out + shown.err
    assert asked == [SamplerSettings(**RECOMMENDED)]


def test_info_says_who_recommends_it(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["info", "demo"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("sampling "))
    assert line == (
        "sampling         temperature 0.6, repeat_penalty 1.3, dry_multiplier 0.5, dry_penalty_window 40, "
        'dry_breakers "\\n", which edge-spec recommends for this very file'
    )
    with pytest.raises(SystemExit):
        main(["info", "demo", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["sampling"], found["sampling_by"]) == (RECOMMENDED, "edge-spec")


def test_the_server_and_the_library_sample_as_recommended(asked: Asked, probe_cache: Path) -> None:
    arguments: dict[str, Any] = {"engine": "llama", "n_threads": 1, "n_ctx": 256, "cache_dir": probe_cache}
    with edge_spec.load("demo", **arguments) as model:
        assert (model.info.sampling, model.info.sampling_by) == (RECOMMENDED, "edge-spec")
        model.generate("Hi", max_tokens=4).read()
        model.generate("Hi", max_tokens=4, n=2).read()
        model.generate_many(["Hi", "Ho"], max_tokens=4).read()
        model.chat(max_tokens=4).send("Hi").read()
        with ModelServer(model, ServerSettings(port=0, name="demo")) as server:
            served = httpx2.get(f"{server.url}/v1/models/demo").json()["sampling"]
            assert served == served | {name: x for name, x in RECOMMENDED.items() if name != "dry_breakers"}
            hi = [{"role": "user", "content": "Hi"}]
            for path, prompt in (("completions", {"prompt": "Hi"}), ("chat/completions", {"messages": hi})):
                body = {"model": "demo", "max_tokens": 4, **prompt}
                assert httpx2.post(f"{server.url}/v1/{path}", json=body, timeout=60).status_code == 200
    of_llm = EdgeSpecModel("edge-spec/mine", {"model": "demo", **arguments})
    assert of_llm.prompt("Hi", max_tokens=4).text()
    assert asked == [SamplerSettings(**RECOMMENDED)]
