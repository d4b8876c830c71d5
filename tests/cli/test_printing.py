"""Laws of what reaches a terminal: nothing that somebody else has named or written commands it."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_hub import fake_hub
from gguf_files import write_gguf

from edge_spec.cli import main
from edge_spec.cli.output import print_json, print_notes, print_table
from edge_spec.cli.printing import echo, one_line, safe, write_text

CLI = Path(__file__).parent.parent.parent / "cli"
EVIL = "a\x1b[2J\x9b31m\u202e\r\x00b"
HARMLESS = "a\ufffd[2J\ufffd31m\ufffd\ufffd\ufffdb"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """All that a command prints, in a home of its own."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "LOCALAPPDATA", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)

    def of(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        shown = capsys.readouterr()
        assert (left.value.code or 0) == code, shown.err
        return shown.out + shown.err

    return of


def test_control_characters_are_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert safe(EVIL + "\n\tc\r\n") == HARMLESS + "\n\tc\n"
    assert one_line(EVIL + "\n\tc") == HARMLESS + "\ufffd\ufffdc"
    echo(EVIL)
    print_table(("name", "of"), [(EVIL + "\n", "us")])
    print_notes((EVIL + "\n",))
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [HARMLESS, f"name{' ' * 12}of", f"{HARMLESS}\ufffd  us"]
    assert shown.err == f"edge-spec: note: {HARMLESS}\ufffd\n"


def test_json_escapes_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": EVIL})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"text": EVIL} and shown.strip().isprintable()


def test_a_reply_is_unchanged_in_a_pipe_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(EVIL)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_text(EVIL)
    assert capsys.readouterr().out == EVIL + HARMLESS


def test_nothing_else_prints() -> None:
    calls = {
        f"{path.name}: {ast.unparse(node)}"
        for path in CLI.rglob("*.py")
        if path.name != "printing.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "click.secho", "print")
        # What goes to a file does not go to a terminal.
        if not any(keyword.arg == "file" for keyword in node.keywords)
    }
    assert not calls


@pytest.mark.skipif(sys.platform == "win32", reason="names of files cannot hold control characters")
def test_names_of_other_programs_are_listed_without_them(said: Callable[..., str], tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "model.gguf").read_bytes()
    evil = "a\x1b[2J\nb"
    blob = tmp_path / ".ollama/models/blobs/sha256-abc"
    manifest = tmp_path / f".ollama/models/manifests/registry.ollama.ai/library/{evil}/1b"
    cached = tmp_path / f"huggingface/hub/models--org--{evil}/snapshots/0123/{evil}.gguf"
    own = tmp_path / f"edge-spec/models/{evil}.gguf"
    for path in (blob, manifest, cached, own):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gguf if path != own else b"GGUF")
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:abc"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    shown = said("list")
    harmless = "a\ufffd[2J\ufffdb"
    for name in (harmless, f"{harmless}:1b", f"org/{harmless}/{harmless}.gguf"):
        assert f"\n{name}  " in shown
    # What a message quotes stays in its line.
    quoted = harmless.replace("\ufffdb", "\\nb")
    assert f"edge-spec: note: {own.parent}/{quoted}.gguf" in shown
    assert shown.replace("\n", "").isprintable()


def test_names_of_a_hub_are_told_without_them(said: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        hub.repositories = {"org/a": {"a.gguf": b"x"}}

        def lie(listed: dict[str, Any]) -> None:
            listed["siblings"].append({"rfilename": EVIL + ".gguf", "size": 1})

        hub.lie = lie
        shown = said("pull", "org/a:Q3_K", code=1)
        assert "org/a states impossible values: 'a\\x1b[2J" in shown and shown.strip().isprintable()
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        hub.plain = {"/a\x1b[2J.gguf": b"x"}
        shown = said("pull", f"{hub.address}/a%1b%5b2J.gguf", code=1)
        assert "states impossible values: 'a\\x1b[2J.gguf' has characters" in shown and shown.strip().isprintable()


@pytest.mark.skipif(sys.platform == "win32", reason="quotes of another shell")
def test_the_command_that_pull_prints_can_be_copied(
    said: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    content = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        hub.repositories = {"org/a": {"x;touch pwned;$(id)-Q4_0.gguf": content}}
        shown = said("pull", "org/a", "--ctx", "256", code=1)
        assert "'x;touch pwned;$(id)-Q4_0' cannot be the name of a model; give it another one with --as NAME" in shown
        shown = said("pull", "org/a", "--ctx", "256", "--as", "tiny", "--model-dir", str(tmp_path / "my models"))
        command = f"edge-spec run tiny --model-dir '{tmp_path}/my models' -p 'Hello'"
        assert shown.endswith(f"tiny is ready: {command}\n")


def test_a_server_has_a_name_that_can_be_printed(said: Callable[..., str]) -> None:
    shown = said("serve", "demo", "--name", "a\x1b[2J", code=2)
    assert shown == ("edge-spec: error: --name is 'a\\x1b[2J' and must be printable characters; choose another one\n")
