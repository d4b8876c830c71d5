"""Laws of pull and rm at the command line, against a hub on this computer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import FakeHub, fake_hub
from gguf_files import write_gguf

from edge_spec.cli import main

pytest.importorskip("huggingface_hub")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "LOCALAPPDATA", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert (left.value.code or 0) == code
    shown = capsys.readouterr()
    return shown.err if code else shown.out


def pulled(hub: FakeHub, *asked: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the library reads the address of the hub when it is imported."""
    return subprocess.run(
        [sys.executable, "-m", "edge_spec", "pull", *asked],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_ENDPOINT": hub.address},
        timeout=100,
    )


def test_a_model_is_pulled_found_and_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = write_gguf(home / "tiny.gguf").read_bytes()
    (home / "elsewhere").mkdir()
    with fake_hub() as hub:
        hub.repositories = {"org/tiny-GGUF": {"tiny-Q4_0.gguf": content}}
        done = pulled(hub, "org/tiny-GGUF", "--as", "tiny", "--ctx", "256", "--memory", "1GiB")
        wrong = pulled(hub, "org/tiny-GGUF", "--as", "other", "--memory", "lots")
    assert wrong.returncode == 2 and "--memory" in wrong.stderr
    assert "\nother " not in said(capsys, "list")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tiny: 1 MiB from the hub" in done.stdout
    assert "with 256 tokens, the budget allows 1,024 MiB" in done.stdout
    assert "\ntiny " in said(capsys, "list")
    assert "llama (llama.cpp): runs it" in said(capsys, "info", "tiny")
    # What was fetched is a folder, and drafts for files elsewhere.
    larger = write_gguf(home / "elsewhere" / "larger.gguf", n_layers=6)
    assert "tiny-Q4_0.gguf" in said(capsys, "info", str(larger))
    assert "tiny is removed" in said(capsys, "rm", "tiny")
    assert "holds no model 'tiny'" in said(capsys, "rm", "tiny", code=1)


def test_without_a_name_the_catalogue_is_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "pull")
    assert "llama-3.2-3b" in out and "Qwen/Qwen3-0.6B-GGUF" in out


def test_wrong_names_are_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the catalogue has no model 'qwen9'" in said(capsys, "pull", "qwen9", code=1)
    assert "--as" in said(capsys, "pull", "qwen3-4b", "--as", "../up", code=2)
