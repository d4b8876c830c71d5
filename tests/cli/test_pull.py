"""Laws of pull and rm at the command line, against a hub on this computer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from fake_hub import FakeHub, fake_hub
from gguf_files import write_gguf
from head_files import write_head

from edge_spec.cli import main
from edge_spec.engines.onnx.kernels import available
from edge_spec.library.partial import interrupted
from edge_spec.loading import possible_modes
from edge_spec.models import inspect, resolve_family

pytestmark = pytest.mark.long

pytest.importorskip("huggingface_hub")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "LOCALAPPDATA", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    assert (left.value.code or 0) == code, shown.err
    return shown.err if code else shown.out


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        yield found


def test_a_model_is_pulled_found_and_removed(hub: FakeHub, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = write_gguf(home / "tiny.gguf").read_bytes()
    (home / "elsewhere").mkdir()
    hub.repositories = {"org/tiny-GGUF": {"tiny-Q4_0.gguf": content}}
    asked = ("pull", "org/tiny-GGUF", "--ctx", "256", "--as")
    assert "--memory" in said(capsys, *asked, "tiny", "--memory", "lots", code=2)
    large = said(capsys, *asked, "tiny", "--memory", "1MiB", code=1)
    assert "tiny does not fit that budget and is not fetched; --memory or --ctx may make it fit, --yes" in large
    assert "--as NAME" in said(capsys, *asked, "demo", code=1)
    assert "\ntiny " not in said(capsys, "list")
    looked = said(capsys, *asked, "tiny", "--memory", "1GiB", "--dry-run").splitlines()
    *about, ready = said(capsys, *asked, "tiny", "--memory", "1GiB").splitlines()
    assert [about[0], *about[4:]] == [looked[0], *looked[4:]]
    assert about[0] == "tiny: 1 MiB"
    assert "with 256 tokens, the budget allows 1,024 MiB" in about[3]
    if available() is None:
        # With our own kernels it is written again, in another order.
        assert about.pop(4) == "  on the disk besides, written when it is first loaded: 1 MiB"
    assert about[4] == f"  to fetch: 1 MiB, into {home / 'edge-spec' / 'models' / 'tiny'}"
    assert ready == "tiny is ready: edge-spec run tiny -p 'Hello'"
    assert "to fetch: 0 MiB" in said(capsys, *asked, "tiny", "--memory", "1MiB", "--yes")
    assert "\ntiny " in said(capsys, "list")
    assert "llama (llama.cpp): runs it" in said(capsys, "info", "tiny")
    # What was fetched is a folder, and drafts for files elsewhere.
    larger = write_gguf(home / "elsewhere" / "larger.gguf", n_layers=6)
    assert "tiny-Q4_0.gguf" in said(capsys, "info", str(larger))
    assert "tiny is removed" in said(capsys, "rm", "tiny")
    assert "holds no model 'tiny'" in said(capsys, "rm", "tiny", code=1)
    assert "demo comes with edge-spec" in said(capsys, "rm", "demo", code=1)


@pytest.mark.skipif(available() is not None, reason="the kernels were not built")
def test_a_model_is_pulled_without_a_drafter_where_one_was_made_for_it(
    hub: FakeHub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(home / "tiny.gguf", n_layers=6)
    head = home / "edge-spec" / "drafters" / ("f" * 32) / "drafter.gguf"
    head.parent.mkdir(parents=True)
    write_head(head, replace(inspect(path), fingerprint="f" * 32), np.arange(9, 99), (1, 2, 5))
    hub.repositories = {"org/tiny-GGUF": {"tiny-Q4_0.gguf": path.read_bytes()}}
    asked = ("pull", "org/tiny-GGUF", "--ctx", "256", "--as", "tiny", "--yes")
    about = said(capsys, *asked, "--dry-run")
    assert "drafter.gguf, which was made for this model, drafts for it" in about
    assert "here: speculation sequence," in about
    said(capsys, *asked)
    assert "sequence" in possible_modes("tiny")
    path.unlink()


def test_pull_and_plan_state_one_minimum(hub: FakeHub, home: Path) -> None:
    """What fetching takes is not there any more when the model is run."""
    path = write_gguf(home / "tiny.gguf")
    hub.repositories = {"org/tiny-GGUF": {"tiny-Q4_0.gguf": path.read_bytes()}}
    found = []
    for asked in (("pull", "org/tiny-GGUF"), ("plan", str(path)), ("run", str(path), "-p", "Hi")):
        command = [sys.executable, "-m", "edge_spec", *asked, "--memory", "10MiB", "--ctx", "256"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        minimum = re.search(r"the minimum is (\d+) MiB", done.stdout + done.stderr)
        assert done.returncode == 1 and minimum is not None, done.stderr
        found.append(int(minimum[1]))
    assert max(found) - min(found) <= 2, found


@pytest.mark.parametrize(("option", "value"), [("--memory", "banana"), ("--ctx", "-1"), ("--ctx", "1+")])
def test_a_wrong_option_is_refused_before_the_hub_is_asked(
    hub: FakeHub, home: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    hub.repositories = {"org/tiny-GGUF": {"tiny-Q4_0.gguf": b"GGUF"}}
    assert option in said(capsys, "pull", "org/tiny-GGUF", option, value, code=2)
    assert hub.requests == 0


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_an_interrupted_pull_continues_and_the_model_runs(
    hub: FakeHub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = resolve_family("demo")
    assert family.draft is not None
    target, draft = family.target.read_bytes(), family.draft.read_bytes()
    models = home / "edge-spec" / "models"
    hub.repositories = {"org/demo-GGUF": {"own-Q4_0.gguf": target}, "org/draft-GGUF": {"small-Q4_0.gguf": draft}}
    hub.stop_at = 1_100_000  # headers are read in pieces of a megabyte
    asked = ["pull", "org/demo-GGUF", "--draft", "org/draft-GGUF", "--as", "fetched", "--ctx", "256", "--yes"]
    command = [sys.executable, "-m", "edge_spec", *asked]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert hub.stopped.wait(60)
        folder = dict(interrupted(models))["own-Q4_0.gguf"]
        while (folder / "part").stat().st_size < hub.stop_at // 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, b"")
    assert not (models / "fetched").exists()
    held = (folder / "part").stat().st_size
    hub.stop_at = 0
    hub.go_on.set()
    hub.asked.clear()
    assert "the drafter fits" in said(capsys, *asked)
    assert ("own-Q4_0.gguf", held, len(target) - 1) in hub.asked
    assert (models / "fetched" / "own-Q4_0.gguf").read_bytes() == target
    same = ["--threads", "1", "--seed", "7", "-n", "12", "--cache-dir", str(home), "-p", "Hello", "--json"]
    fetched, packaged = (json.loads(said(capsys, "run", name, *same)) for name in ("fetched", "demo"))
    assert fetched["token_ids"] == packaged["token_ids"]
    assert fetched["speculation"]["mode"] == "sequence"
    # The same name means the same model in Python.
    assert possible_modes("fetched") == ["off", "sequence", "tree", "ngram"]
    assert "fetched is removed" in said(capsys, "rm", "fetched")
    assert not (models / "fetched").exists()


def test_a_drafter_is_suggested_where_none_is_asked_for(
    hub: FakeHub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = write_gguf(home / "tiny.gguf", n_layers=6).read_bytes()
    models = home / "edge-spec" / "models"
    models.mkdir(parents=True)
    (home / "edge-spec" / "catalogue.toml").write_text(
        '[own]\ntarget = { repo = "a/Tiny-2-Instruct-GGUF", file = "*.gguf" }\n'
        'draft = { repo = "a/Tiny-1-GGUF", file = "*.gguf" }\nread = "here"\ntried = true\n'
    )
    hub.repositories = {name: {"x-Q4_0.gguf": content} for name in ("b/tiny_2-gguf", "b/other-gguf")}
    known, unknown = (said(capsys, "pull", name, "--ctx", "256", "--dry-run") for name in hub.repositories)
    assert "  a drafter that may fit: --draft a/Tiny-1-GGUF\n" in known
    assert "  no drafter is known for it: --draft ORG/REPO" in unknown
    write_gguf(models / "small.gguf", n_layers=1)
    here = said(capsys, "pull", "b/tiny_2-gguf", "--ctx", "256", "--dry-run")
    assert f"  {models / 'small.gguf'} can draft for it: `edge-spec pair x-Q4_0` measures it\n" in here


def test_without_a_name_the_catalogue_is_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "pull")
    assert "llama-3.2-3b *" in out and "parameters" in out and "What fits this computer" in out
    records = [json.loads(line) for line in said(capsys, "pull", "--json").splitlines()]
    assert any(each["intermediate"] for each in records) and not any(each["tried"] for each in records)
    assert {"Qwen/Qwen3-0.6B-GGUF", ""} <= {each["draft"] for each in records}
    assert len({frozenset(each) for each in records}) == 1


def test_the_catalogue_says_what_fits_a_budget(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        memory: {each["name"]: each for each in map(json.loads, said(capsys, "pull", "--json", *asked).splitlines())}
        for memory, asked in (("2GiB", ("--memory", "2GiB")), ("900GiB", ("--memory", "900GiB")))
    }
    assert "What fits 2GiB" in said(capsys, "pull", "--memory", "2GiB")
    n_fitting = {memory: sum(each["fits"] is not None for each in models.values()) for memory, models in found.items()}
    assert (
        0 < n_fitting["2GiB"] < n_fitting["900GiB"] == sum(each["bytes"] is not None for each in found["2GiB"].values())
    )
    for each in found["2GiB"].values():
        if each["fits"] is None and each["bytes"] is not None:
            assert each["least_bytes"] > 2 << 30
        elif each["fits"] is not None:
            assert each["fits"]["memory_bytes"] <= min(2 << 30, each["memory_bytes"])
    # What needs more than there is is not said to fit as it is.
    for line in said(capsys, "pull", "--memory", "2GiB", "--ctx", "8192").splitlines():
        needed = re.search(r" ([\d,]+) MiB  yes$", line)
        assert needed is None or int(needed[1].replace(",", "")) <= 2048, line
    large = found["900GiB"]["qwen3-4b"]
    same = {name: large[name] for name in ("n_ctx", "speculation", "cache", "memory_bytes")}
    assert large["n_ctx"] == 4096 and large["fits"] == {**same, "held_experts": 0}
    longer = json.loads(said(capsys, "pull", "--json", "--memory", "900GiB", "--ctx", "16384").splitlines()[0])
    assert longer["n_ctx"] == 16384 and longer["memory_bytes"] > found["900GiB"][longer["name"]]["memory_bytes"]
    assert "--memory" in said(capsys, "pull", "--memory", "lots", code=2)


@pytest.mark.parametrize("name", ["bge", "vocabulary", "no-gguf", "damaged"])
def test_what_is_no_text_model_is_refused_by_the_name_that_was_typed(
    hub: FakeHub, home: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    large = write_gguf(home / "large.gguf", n_layers=8).read_bytes()
    empty = gguf.GGUFWriter(home / "empty.gguf", "llama")
    empty.add_uint32("llama.block_count", 2)
    for write in (empty.write_header_to_file, empty.write_kv_data_to_file, empty.write_tensors_to_file, empty.close):
        write()
    content, why = {
        "bge": (write_gguf(home / "bge.gguf", "bert", n_layers=8).read_bytes(), "an embedding model (bert)"),
        "vocabulary": ((home / "empty.gguf").read_bytes(), "holds no weights"),
        "no-gguf": (b"hello" * 1000, "is not a GGUF file"),
        "damaged": (large[:5000], "ends too early"),
    }[name]
    hub.repositories = {f"me/{name}-GGUF": {f"{name}-Q4_0.gguf": content}}
    error = said(capsys, "pull", f"me/{name}-GGUF", "--yes", code=1)
    assert f"error: me/{name}-GGUF:{name}-Q4_0.gguf " in error and why in error
    assert "edge-spec-" not in error and "nothing was fetched" in error
    assert not (home / "edge-spec" / "models" / f"{name}-Q4_0").exists()


def test_wrong_names_are_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the catalogue has no model 'qwen9'" in said(capsys, "pull", "qwen9", code=1)
    for verb in ("run", "info", "plan"):
        assert "did you mean qwen3-4b? fetch it: edge-spec pull qwen3-4b;" in said(capsys, verb, "quen3-4b", code=1)
        assert "did you mean smollm2? `edge-spec list`" in said(capsys, verb, "smolm2", code=1)
    (home / "edge-spec" / "models").mkdir(parents=True)
    write_gguf(home / "edge-spec" / "models" / "my-model.gguf")
    assert "did you mean my-model?" in said(capsys, "run", "mymodel", code=1)
    assert "did you mean my-model?" in said(capsys, "rm", "mymodel", code=1)
    near = said(capsys, "pull", "quen3-4b", code=1)
    assert "'quen3-4b'; did you mean qwen3-4b? `edge-spec pull` lists" in near and "smollm2" not in near
    assert "--as" in said(capsys, "pull", "qwen3-4b", "--as", "../up", code=2)
    assert "contradict" in said(capsys, "pull", "qwen3-4b", "--draft", "a/b", "--no-drafts", code=2)


def test_an_address_that_nobody_answers_is_told_in_a_fresh_process(tmp_path: Path) -> None:
    """What the hub's library imports by itself depends on what was asked for before."""
    command = [sys.executable, "-m", "edge_spec", "pull", "http://127.0.0.1:1/x.gguf", "--model-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    *notes, line = done.stderr.splitlines()
    assert all("trying again" in note for note in notes)
    assert line.startswith("edge-spec: error: ") and "127.0.0.1:1" in line
    assert not any(tmp_path.rglob("*.gguf"))
