"""Laws of the verbs that look after models: list, info, cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import write_gguf
from head_files import write_head

from edge_spec.cli import main
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.onnx.transcription.cache_folder import record_whole
from edge_spec.models import inspect, resolve_family


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints, in a home of its own."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)

    def of(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        assert (left.value.code or 0) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    return of


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.long
def test_a_model_in_the_model_folder_is_listed_and_run_by_name(
    said: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    tiny = write_gguf(tmp_path / "models" / "tiny.gguf")
    assert "there is no model 'tiny'" in said("info", "tiny", code=1)
    monkeypatch.setenv("EDGE_SPEC_MODEL_DIR", str(tmp_path / "models"))
    found = {each["name"]: each for each in records(said("list", "--json"))}
    assert found["tiny"]["path"] == str(tiny)
    assert found["demo"]["draft"] == str(resolve_family("demo").draft)
    for name in ("tiny", "demo"):
        (described,) = records(said("info", name, "--json"))
        assert {key: described[key] for key in ("bytes", "quantization")} == {
            key: found[name][key] for key in ("bytes", "quantization")
        }
    for name in ("tiny", str(tiny)):
        assert records(said("info", name, "--json"))[0]["path"] == str(tiny)
        assert said("info", name).startswith("name             tiny\n")
    assert inspect(tiny).name in said("info", "tiny")
    assert "\ntiny " in said("list")
    plan = json.loads(said("plan", "tiny", "--ctx", "256", "--json"))
    assert plan["chosen"]["choices"]["context"] == 256


def test_a_damaged_model_is_listed_with_what_is_wrong(said: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\3\0\0\0")
    (found,) = [each for each in records(said("list", "--json", "--model-dir", str(tmp_path))) if each["problem"]]
    assert (found["name"], found["architecture"]) == ("broken", "unusable")
    assert "ends too early" in found["problem"]


def test_a_head_is_told_for_every_file_of_its_model(said: Callable[..., str], tmp_path: Path) -> None:
    """It was made here for another file than this one, whose weights have another type."""
    (tmp_path / "models").mkdir()
    path = write_gguf(tmp_path / "models" / "tiny.gguf", n_layers=6)
    made_for = replace(inspect(path), fingerprint="f" * 32)
    head = tmp_path / "edge-spec" / "drafters" / made_for.fingerprint / "drafter.gguf"
    head.parent.mkdir(parents=True)
    write_head(head, made_for, np.arange(9, 99), (1, 2, 5))
    named = f"llama with 6 layers of width {made_for.n_embd}"
    assert f"\nmade for         {named}, in any type of weights\n" in said("info", str(head))
    assert f"{head} (1 MiB, an EAGLE-3 head)" in said("info", str(path))
    (facts,) = records(said("info", str(path), "--json"))
    assert [(each["path"], each["head"]) for each in facts["drafters"]] == [(str(head), "an EAGLE-3 head")]
    found = {each["name"]: each for each in records(said("list", "--json", "--model-dir", str(path.parent)))}
    assert found["tiny"]["draft"] == str(head)
    # Of another model it is not told, and refused where it is asked for.
    other = write_gguf(tmp_path / "models" / "other.gguf", n_layers=7)
    assert str(head) not in said("info", str(other))
    refused = said("run", str(other), "--draft", str(head), "-p", "Hi", code=1)
    expected = f"drafter.gguf was made for {named}, and other.gguf is {named.replace('6', '7', 1)}"
    assert expected in refused and len(refused.splitlines()) == 1


def test_info_in_json_and_in_words_agree(said: Callable[..., str]) -> None:
    (facts,) = records(said("info", "demo", "--json"))
    text = said("info", "demo")
    assert (facts["name"], facts["title"]) == ("demo", inspect(resolve_family("demo").target).name)
    assert text.startswith("name             demo\n")
    assert f"\ntitle            {facts['title']}\n" in text
    assert facts["engines"]["llama"] is None and "llama (llama.cpp): runs it" in text
    for drafter in facts["drafters"]:
        assert drafter["path"] in text
    assert f"{facts['trained_context']:,} tokens" in text


def test_what_a_disk_has_damaged_is_found_and_removed(
    said: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ["--cache-dir", str(tmp_path / "cache")]
    folders = [
        transcribe(inspect(write_gguf(tmp_path / f"{name}.gguf", seed=seed)), tmp_path / "cache" / "onnx").folder
        for seed, name in enumerate(("sound", "ill"))
    ]
    assert said("cache", "verify", *cache) == "2 read, 0 of them damaged\n"
    weights = folders[1] / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[len(data) // 3] ^= 1
    weights.write_bytes(data)
    record_whole(weights)  # a disk changes no times
    with pytest.raises(SystemExit) as left:
        main(["cache", "verify", *cache])
    assert left.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{folders[1]} (of ill.gguf) was damaged, and is removed", "2 read, 1 of them damaged"]
    assert [folder.exists() for folder in folders] == [True, False]
    assert said("cache", "verify", *cache) == "1 read, 0 of them damaged\n"


@pytest.mark.long
def test_the_cache_is_listed_and_cleared_and_the_rest_stays(said: Callable[..., str], tmp_path: Path) -> None:
    cache = ["--cache-dir", str(tmp_path / "cache")]
    conversations = tmp_path / "edge-spec" / "conversations"
    conversations.mkdir(parents=True)
    (conversations / "a.chat").write_bytes(b"x" * 100)
    assert "Hello" in said("run", "demo", "-p", "hi", "-n", "3", "--temperature", "0", *cache)
    kept = records(said("cache", "list", "--json", *cache))
    assert {each["kind"] for each in kept} >= {"probes", "conversations"}
    assert {each["name"] for each in kept if each["kind"] == "transcription"} <= {
        f"{role}-q4_0.gguf" for role in ("target", "drafter", "intermediate")
    }
    assert all(Path(each["path"]).exists() and each["n_bytes"] > 0 for each in kept)
    said("cache", "clear", "probes", *cache)
    assert "probes" not in {each["kind"] for each in records(said("cache", "list", "--json", *cache))}
    # In the plural, or as it is listed.
    assert all("freed" in said("cache", "clear", what, *cache) for what in ("transcriptions", "transcription"))
    assert "transcription" not in {each["kind"] for each in records(said("cache", "list", "--json", *cache))}
    assert all("freed" in said("cache", "clear", what, *cache) for what in ("downloads", "download", "all"))
    left = records(said("cache", "list", "--json", *cache))
    assert [each["kind"] for each in left] == ["conversations"]
    assert "Hello" in said("run", "demo", "-p", "hi", "-n", "3", "--temperature", "0", *cache)
