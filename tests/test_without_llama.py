"""Laws of an installation without the extra ``llama``: what our engine runs works, the rest is refused in a line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
from gguf_files import write_gguf
from without_llama import environment_without_llama

from edge_spec.engines.onnx import kernels
from edge_spec.engines.registry import engine, engines
from edge_spec.extras import how_to_install
from edge_spec.llama_cpp.library import SUPPORTED, why_not_installed
from edge_spec.models import inspect, resolve_family

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        kernels.available() is not None or kernels.features()[0] == "reference", reason="no fast kernels here"
    ),
]

INSTALL = how_to_install("llama")
WRITING = ("-n", "6", "--threads", "1", "--temperature", "0", "-p", "Name a dog.")


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment without llama.cpp, whose home the tests share."""
    return environment_without_llama(tmp_path_factory.mktemp("without"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of an architecture that only llama.cpp runs."""
    return write_gguf(tmp_path_factory.mktemp("other") / "other.gguf", architecture="gemma2")


def edge_spec(
    environment: Mapping[str, str], *arguments: str, typed: str = "", code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run the command, which ends with ``code``."""
    done = subprocess.run(
        [sys.executable, "-m", "edge_spec", *arguments],
        input=typed,
        capture_output=True,
        text=True,
        timeout=600,
        env=dict(environment),
    )
    assert done.returncode == code, done.stderr
    return done


def test_nothing_finds_llama_cpp_there(without: dict[str, str]) -> None:
    for found in ("import llama_cpp", "from edge_spec.llama_cpp.library import library; library()"):
        assert subprocess.run([sys.executable, "-c", found], capture_output=True, env=without).returncode == 1


def test_the_same_text_comes_with_the_same_profile(without: dict[str, str], tmp_path: Path) -> None:
    with_it = without | {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "XDG_CACHE_HOME": str(tmp_path)}
    said = [edge_spec(each, "run", "demo", *WRITING).stdout for each in (without, with_it)]
    planned = [
        json.loads(edge_spec(each, "plan", "demo", "--json", "--threads", "1").stdout) for each in (without, with_it)
    ]
    assert said[0] == said[1] and said[0].strip()
    assert planned[0]["profile"] == planned[1]["profile"] is not None


def test_a_chat_answers(without: dict[str, str]) -> None:
    assert edge_spec(without, "chat", "demo", *WRITING[:-2], typed="Name a dog.\n").stdout.strip()


def test_a_server_answers(without: dict[str, str]) -> None:
    command = [sys.executable, "-m", "edge_spec", "serve", "demo", "--threads", "1", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=without) as process:
        assert process.stderr is not None
        try:
            url = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.]+:\d+", line)))
            body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
            request = urllib.request.Request(
                f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=300) as answer:
                assert json.load(answer)["usage"]["completion_tokens"] >= 1
        finally:
            process.terminate()


def test_drafts_are_compared(without: dict[str, str]) -> None:
    done = edge_spec(without, "check", "demo", "--limit", "1", "-n", "4", "--threads", "1")
    assert done.stdout.strip()


def test_a_plan_names_no_engine_that_is_not_there(without: dict[str, str]) -> None:
    tight = edge_spec(without, "plan", "demo", "--memory", "20MiB", code=1).stderr
    assert "llama" not in tight


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "demo", "--engine", "llama", "-p", "a"),
        ("plan", "demo", "--engine", "llama"),
        ("run", "demo", "--draft-engine", "llama", "-p", "a"),
        ("run", "MODEL", "-p", "a"),
        ("plan", "MODEL"),
        ("pair", "MODEL"),
        ("chat", "MODEL"),
        ("quantize", "MODEL", "out.gguf", "--type", "Q4_0"),
    ],
    ids=" ".join,
)
def test_what_needs_it_says_how_to_install_it(arguments: tuple[str, ...], without: dict[str, str], other: Path) -> None:
    done = edge_spec(without, *(str(other) if each == "MODEL" else each for each in arguments), code=1)
    (line,) = done.stderr.splitlines()
    assert "llama-cpp-python is not installed" in line
    assert line.endswith(f"run: {INSTALL}")
    if arguments[0] != "quantize":
        assert (
            "others (`edge-spec doctor` lists them)" in line or "architectures (`edge-spec doctor` lists them)" in line
        )
        assert len(line) < 350


@pytest.mark.parametrize("setting", ["--kv q8_0", "--no-repack"])
def test_a_setting_of_another_engine_says_how_to_install_one(setting: str, without: dict[str, str]) -> None:
    (line,) = edge_spec(without, "plan", "demo", *setting.split(), code=2).stderr.splitlines()
    assert line.endswith(
        f"has no effect on ONNX Runtime; leave it out, or use another --engine, for which run: {INSTALL}"
    )


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [("model", "rwkv", "is of the kind 'rwkv'"), ("pre", "none", "cuts texts into words by rules of the name 'none")],
)
def test_a_vocabulary_that_only_it_reads_is_refused_at_once(
    key: str, value: str, said: str, without: dict[str, str], tmp_path: Path
) -> None:
    raw = bytearray(resolve_family("demo").target.read_bytes())
    name = f"tokenizer.ggml.{key}".encode()
    begin = raw.index(name) + len(name) + 12  # behind the type of the value, and its length
    length = raw[begin - 8]
    raw[begin : begin + length] = value.encode().ljust(length, b"-")
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    for command in ("plan", "run"):
        done = edge_spec(without, command, str(path), *(WRITING if command == "run" else ()), code=1)
        (line,) = done.stderr.splitlines()
        assert f"model.gguf: ONNX Runtime cannot run it: its vocabulary {said}" in line
        assert line.count("llama-cpp-python is not installed") == 1 and line.endswith(f"run: {INSTALL}")
    assert engine("onnx").why_not(inspect(path)) is None  # here it is installed


def test_who_looks_sees_what_is_missing(without: dict[str, str], other: Path) -> None:
    missing = f"llama-cpp-python is not installed; run: {INSTALL}"
    assert missing in (said := edge_spec(without, "doctor").stdout)
    assert all(name in said for name in engine("onnx").architectures)
    told = json.loads(edge_spec(without, "doctor", "--json").stdout)["libraries"]
    assert told["llama-cpp-python"] == missing
    demo = json.loads(edge_spec(without, "info", "demo", "--json").stdout)["engines"]
    assert demo == {"onnx": None, "llama": missing}
    listed = edge_spec(without, "list", "--model-dir", str(other.parent))
    assert re.search(r"^demo .*llama", listed.stdout, re.MULTILINE)
    (note,) = listed.stderr.splitlines()
    assert note.startswith("edge-spec: note: other.gguf: ") and note.endswith(f"run: {INSTALL}")


@pytest.mark.parametrize("wanted", ["run", "chat", "plan"])
def test_where_it_is_installed_our_engine_does_not_load_it(wanted: str, tmp_path: Path) -> None:
    """Not even after a strange file was tried."""
    arguments = [wanted, "demo", *(WRITING if wanted == "run" else WRITING[:-2] if wanted == "chat" else ())]
    home = without_home(tmp_path)
    code = (
        f"import sys\nfrom edge_spec.cli import main\ntry:\n    main({arguments})\n"
        "except SystemExit:\n    pass\nprint('llama_cpp.llama_cpp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], input="", capture_output=True, text=True, env=home, timeout=600)
    assert done.stdout.splitlines()[-1:] == [str(wanted == "plan")], done.stderr


def without_home(folder: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}


def test_another_version_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its structures may be others, and nobody asked for it by the extra."""
    assert why_not_installed() is None and version("llama-cpp-python").startswith(SUPPORTED)
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "0.3.40"\n')
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    monkeypatch.delitem(sys.modules, "llama_cpp.llama_cpp", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    said = f"llama-cpp-python 0.3.40 is installed, and this edge-spec needs {SUPPORTED}"
    assert why_not_installed() == engine("llama").why_not_installed() == said
    requirement = how_to_install("llama")
    assert f">={SUPPORTED}" in requirement and f"<0.3.{int(SUPPORTED.rpartition('.')[2]) + 1}" in requirement


def test_every_engine_that_an_extra_brings_says_so(other: Path) -> None:
    assert [each.name for each in engines() if each.extra] == ["llama"]
    assert engine("onnx").why_not(inspect(other)) is not None
