"""Laws of what others wrote: a listing, a manifest, settings, a cache. Whatever is in it, nothing else suffers."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_hub import FakeHub, client, fake_hub
from gguf_files import write_gguf

from edge_spec.cli import main
from edge_spec.engines.onnx.transcription.cache import read_transcription
from edge_spec.engines.onnx.transcription.cache_folder import is_of
from edge_spec.engines.records import read_record
from edge_spec.errors import DownloadError, EdgeSpecError, SettingsError
from edge_spec.foreign import parse_json, read_json, read_toml
from edge_spec.library.download import Busy, in_time
from edge_spec.library.finding import find
from edge_spec.library.pulling import pull
from edge_spec.library.stores import all_models
from edge_spec.library.user_folder import read_settings
from edge_spec.library.wanted import wanted
from edge_spec.models import inspect, resolve_family
from edge_spec.models.made_drafters import choices, made_drafter_folder

pytestmark = pytest.mark.long

DEEP = 100_000
HOSTILE = {
    "lists in lists": b"[" * DEEP + b"]" * DEEP,
    "objects in objects": b'{"layers":' * DEEP + b"1" + b"}" * DEEP,
    "less deep": b'{"layers":' * 300 + b"1" + b"}" * 300,
    "zero bytes": b"\0" * 64,
    "a zero byte in a text": b'{"downloadsFolder": "\\u0000", "target": "\\u0000", "layers": "\\u0000"}',
    "no UTF-8": b"\xff\xfe{}",
    "half a character": b'{"downloadsFolder": "\\ud800", "target": "\\ud800"}',
    "many digits": b'{"seen": ' + b"9" * 5000 + b"}",
    "a number beyond numbers": b'{"layers": 1e999, "seconds": {"1": 1e999}, "version": 18446744073709551616}',
    "no object": b"[[1], null]",
    "an object of another shape": b'{"layers": [null], "capabilities": [], "network": 1, "content": {}, "seen": 5}',
    "a text": b'"text"',
    "nothing": b"",
    "more than anybody writes": b" " * (17 << 20),
}


@pytest.fixture(params=[*HOSTILE, "a pipe", "a folder", "a device"])
def hostile(request: pytest.FixtureRequest) -> Callable[[Path], Path]:
    """Puts something in the place of a record."""

    def put(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        if request.param == "a pipe":
            os.mkfifo(path)
        elif request.param == "a folder":
            path.mkdir()
        elif request.param == "a device":
            path.symlink_to("/dev/zero")
        else:
            path.write_bytes(HOSTILE[request.param])
        return path

    return put


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_record_is_read_or_refused_as_a_value(content: bytes) -> None:
    try:
        json.dumps(parse_json(content))
    except ValueError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["[NaN]", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have_are_read_only_where_python_wrote_them(text: str) -> None:
    assert json.dumps(parse_json(text))
    with pytest.raises(ValueError, match=r"not a JSON number|too large"):
        parse_json(text, finite=True)


@pytest.mark.parametrize("text", ["1" + "0" * 6000, '{"seed": [-1' + "0" * 6000 + "]}"])
def test_a_number_of_many_digits_is_refused_in_words_of_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"^a number in it has more than 4,300 digits$"):
        parse_json(text)


def test_what_is_nested_as_deep_as_people_nest_is_read(tmp_path: Path) -> None:
    record = json.loads("[" * 250 + "]" * 250)
    (tmp_path / "record").write_text(json.dumps(record))
    assert read_json(tmp_path / "record") == record
    (tmp_path / "record").write_text("a = " + "[" * DEEP + "]" * DEEP)
    with pytest.raises(ValueError, match="256 levels"):
        read_toml(tmp_path / "record")


def test_a_bad_record_of_another_program_hides_no_model(
    hostile: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    write_gguf(own / "tiny.gguf")
    hostile(tmp_path / ".lmstudio-home-pointer")
    hostile(tmp_path / ".lmstudio" / "settings.json")
    hostile(tmp_path / ".cache" / "lm-studio" / "settings.json")
    hostile(tmp_path / ".ollama" / "models" / "manifests" / "registry.ollama.ai" / "library" / "a" / "1")
    hostile(tmp_path / ".cache" / "huggingface" / "hub" / "models--a--b" / "refs" / "main")
    hostile(own / "family" / "family.json")
    hostile(own / ".partial" / "0123" / "name")
    for name in ("HOME", "XDG_DATA_HOME", "USERPROFILE", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EDGE_SPEC_MODEL_DIR", str(own))
    for verb in (["list"], ["cache", "list"]):
        with pytest.raises(SystemExit) as left:
            main([*verb, "--json"])
        shown = capsys.readouterr().out
        assert not left.value.code
    assert [each.name for each in all_models(own, {"HOME": str(tmp_path)}) if each.path.is_file()] == ["tiny"]
    assert "Traceback" not in shown


def test_bad_caches_count_as_none_and_bad_settings_are_told_in_one_line(
    hostile: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert read_record(hostile(tmp_path / "probe.json")) in ({}, *map(_parsed, HOSTILE.values()))
    hostile(tmp_path / "transcription" / "facts.json")
    hostile(tmp_path / "transcription" / "source.json")
    assert read_transcription(tmp_path / "transcription") is None
    assert not is_of(tmp_path / "transcription", [write_gguf(tmp_path / "tiny.gguf")])
    target = inspect(tmp_path / "tiny.gguf")
    hostile(made_drafter_folder(target) / "chosen.json")
    assert choices(target) == []
    settings = hostile(tmp_path / "config.toml")
    try:
        assert read_settings({"EDGE_SPEC_CONFIG": str(settings)}) == {}
    except SettingsError as error:
        assert str(settings) in str(error) and "\n" not in str(error)
    hostile(tmp_path / "family" / "family.json")
    with pytest.raises(EdgeSpecError) as refused:
        resolve_family(tmp_path / "family")
    assert "\n" not in str(refused.value)


def _parsed(content: bytes) -> object:
    try:
        return parse_json(content)
    except ValueError:
        return {}


def test_folders_that_settings_name_are_searched_only_so_far(tmp_path: Path) -> None:
    (tmp_path / "models" / "a" / "b").mkdir(parents=True)
    write_gguf(tmp_path / "models" / "a" / "b" / "tiny.gguf")
    deep = tmp_path / "models"
    for _ in range(40):
        deep /= "d"
    deep.mkdir(parents=True)
    write_gguf(deep / "hidden.gguf")
    (tmp_path / ".lmstudio").mkdir()
    (tmp_path / ".lmstudio" / "settings.json").write_text(json.dumps({"downloadsFolder": str(tmp_path / "models")}))
    names = [each.name for each in all_models(tmp_path / "own", {"HOME": str(tmp_path)})]
    assert names == ["a/b/tiny.gguf"]
    wide = tmp_path / "wide"
    for number in range(2500):
        (wide / f"{number // 50}" / f"{number}" / "below").mkdir(parents=True)
    (tmp_path / ".lmstudio" / "settings.json").write_text(json.dumps({"downloadsFolder": str(wide)}))
    visited: list[object] = []
    scan = os.scandir
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: (visited.append(path), scan(path))[1])
        list(all_models(tmp_path / "own", {"HOME": str(tmp_path)}))
    assert 2000 <= len(visited) < 2100


def test_a_listing_is_read_or_refused_whatever_a_hub_writes(hostile: Callable[[Path], Path], tmp_path: Path) -> None:
    path = hostile(tmp_path / "listing")
    content = path.read_bytes() if path.is_file() else b"{}"
    with fake_hub() as hub:
        hub.repositories = {"org/a-GGUF": {"a-Q4_0.gguf": b"GGUF"}}
        hub.listing = (content, {})
        with pytest.raises(DownloadError, match="org/a-GGUF") as refused:
            client(hub).files("org/a-GGUF")
    assert "\n" not in str(refused.value)


def test_a_listing_that_grows_when_it_is_unpacked_is_not_unpacked(tmp_path: Path) -> None:
    bomb = gzip.compress(b" " * (200 << 20))
    with fake_hub() as hub:
        hub.repositories = {"org/a-GGUF": {"a-Q4_0.gguf": b"GGUF"}}
        hub.listing = (bomb, {"Content-Encoding": "gzip"})
        with pytest.raises(DownloadError, match="unexpected response"):
            client(hub).files("org/a-GGUF")


def test_a_hub_that_sends_a_byte_for_each_request_is_given_up(hub_of_bytes: FakeHub, tmp_path: Path) -> None:
    what = find(wanted("org/a-GGUF"), client(hub_of_bytes))
    with pytest.raises(DownloadError, match="the same command continues"):
        pull(what, client(hub_of_bytes), tmp_path, {})
    assert hub_of_bytes.requests < 20


@pytest.fixture
def hub_of_bytes() -> object:
    with fake_hub() as hub:
        hub.repositories = {"org/a-GGUF": {"a-Q4_0.gguf": b"GGUF" * 5000}}
        hub.most_at_once = 1
        yield hub


def test_a_connection_that_trickles_counts_as_failed() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    arrived = []
    with pytest.raises(Busy, match="60 s"):
        for piece in in_time(iter(lambda: b"x", b""), clock):
            arrived.append(piece)
    assert 50 < len(arrived) < 70
    pieces = [b"x" * 400] * 1000
    assert list(in_time(pieces, clock)) == pieces


def test_a_download_goes_through_no_link(tmp_path: Path) -> None:
    content = b"GGUF" + bytes(5000)
    with fake_hub() as hub:
        hub.repositories = {"org/a-GGUF": {"a-Q4_0.gguf": content}}
        what = find(wanted("org/a-GGUF"), client(hub))
        (file,) = what.files["target"]
        victim, models = tmp_path / "victim", tmp_path / "models"
        victim.write_bytes(b"precious")
        for name in ("part", "name"):
            (models / ".partial" / file.key).mkdir(parents=True, exist_ok=True)
            (models / ".partial" / file.key / name).symlink_to(victim)
        place = pull(what, client(hub), models, {})
    assert victim.read_bytes() == b"precious"
    assert (place / "a-Q4_0.gguf").read_bytes() == content
