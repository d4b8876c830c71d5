"""Laws of finding models: in the user's folder and in those of other programs, by the names that the list shows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from gguf_files import write_gguf

from edge_spec.errors import ModelNotFound
from edge_spec.library.pulling import remove
from edge_spec.library.stores import all_models, locate, name_of
from edge_spec.models import inspect, resolve_family


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which four programs keep a model, each in its own manner."""
    home = tmp_path_factory.mktemp("home")
    gguf = write_gguf(home / "model.gguf").read_bytes()

    def put(path: str, content: bytes = gguf) -> None:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_bytes(content)

    put("own/tiny.gguf")
    put("own/pair/target.gguf")
    put("own/pair/small.gguf")
    put("own/pair/family.json", json.dumps({"target": "target.gguf", "draft": "small.gguf"}).encode())
    put("own/.partial/unfinished.gguf")
    hub = ".cache/huggingface/hub/models--org--tiny-GGUF"
    put(f"{hub}/snapshots/0123/tiny-Q4_0.gguf")
    put(f"{hub}/snapshots/0123/mmproj-tiny.gguf")
    put(f"{hub}/snapshots/0123/big-00001-of-00002.gguf")
    put(f"{hub}/snapshots/0123/big-00002-of-00002.gguf")
    put(".ollama/models/blobs/sha256-abc")
    weights = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:abc"}
    layers = [{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:def"}, weights]
    for place in ("registry.ollama.ai/library/tiny/1b", "registry.ollama.ai/somebody/tiny/latest", "other.org/a/b/c"):
        put(f".ollama/models/manifests/{place}", json.dumps({"layers": layers}).encode())
    escaping = [{**weights, "digest": "sha256-/../../../model.gguf"}]
    put(".ollama/models/manifests/registry.ollama.ai/library/evil/1", json.dumps({"layers": escaping}).encode())
    put(".ollama/models/manifests/registry.ollama.ai/library/broken/1", b"{")
    put(".lmstudio/models/maker/tiny-GGUF/tiny.gguf")
    return home


def test_models_of_every_program_are_listed_by_name(home: Path) -> None:
    found = {each.name: each.store for each in all_models(home / "own", {"HOME": str(home)})}
    assert found == {
        "pair": "edge-spec",
        "tiny": "edge-spec",
        "org/tiny-GGUF/tiny-Q4_0.gguf": "Hugging Face",
        "org/tiny-GGUF/big-00001-of-00002.gguf": "Hugging Face",
        "tiny:1b": "ollama",
        "somebody/tiny:latest": "ollama",
        "other.org/a/b:c": "ollama",
        "maker/tiny-GGUF/tiny.gguf": "LM Studio",
    }


def test_a_listed_name_is_the_model_that_the_list_means(home: Path) -> None:
    environment = {"HOME": str(home)}
    found = list(all_models(home / "own", environment))
    assert len(found) == 8
    for each in found:
        assert locate(each.name, home / "own", environment) == each
        assert name_of(each) == each.name
        assert os.fspath(each) == str(each.path)
        assert inspect(resolve_family(each.path).target).n_vocab == 384


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("TINY", "tiny"),
        ("Pair", "pair"),
        ("Tiny:1B", "tiny:1b"),
        ("Other.org/a/b", "other.org/a/b:c"),
        ("somebody/TINY", "somebody/tiny:latest"),
        ("b", "other.org/a/b:c"),
        ("tiny-q4_0", "org/tiny-GGUF/tiny-Q4_0.gguf"),
        ("Tiny-Q4_0.gguf", "org/tiny-GGUF/tiny-Q4_0.gguf"),
        ("maker/tiny-gguf", "maker/tiny-GGUF/tiny.gguf"),
        ("maker/tiny-GGUF/tiny", "maker/tiny-GGUF/tiny.gguf"),
    ],
)
def test_names_may_be_short_and_in_other_letters_where_one_model_is_meant(home: Path, typed: str, meant: str) -> None:
    found = locate(typed, home / "own", {"HOME": str(home)})
    assert found is not None
    assert found.name == meant


def test_a_short_name_of_several_models_is_refused_with_all_of_them(home: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        locate("org/tiny-gguf", home / "own", {"HOME": str(home)})
    names = {*str(caught.value.hint).removeprefix("name one of them: ").split(", ")}
    assert names == {"org/tiny-GGUF/tiny-Q4_0.gguf", "org/tiny-GGUF/big-00001-of-00002.gguf"}


def test_models_of_the_package_are_found_in_other_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("DEMO", tmp_path, {"HOME": str(tmp_path)}) is None
    assert resolve_family("Demo") == resolve_family("demo")
    # A file is meant before that.
    (tmp_path / "DEMO").write_bytes(write_gguf(tmp_path / "model.gguf").read_bytes())
    assert resolve_family("DEMO").target.name == "DEMO"


def test_other_names_and_paths_are_left_alone(home: Path) -> None:
    for name in ("demo", "smollm2", "unknown", "", "..", ".partial", "a\0b", "x" * 5000, str(home / "model.gguf")):
        assert locate(name, home / "own", {"HOME": str(home)}) is None


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        (None, "smollm2"),
        ("demo", "demo"),
        ("a/b/tiny-Q4_0.gguf", "tiny-Q4_0"),
        (Path("b.GGUF"), "b"),
        ("models/pair/", "pair"),
        ("onnx/model_q4.onnx", "model_q4"),
        ("llama-3.2-1b", "llama-3.2-1b"),
        (".gguf", ".gguf"),
        ("/", "/"),
    ],
)
def test_a_model_is_called_what_was_typed_and_a_path_by_its_file(typed: str | Path | None, name: str) -> None:
    assert name_of(typed) == name


def test_a_model_without_a_manifest_is_listed_as_it_is_found(home: Path, tmp_path: Path) -> None:
    for path in ("plain/model.gguf", "graph/onnx/model.onnx", "graph/tokenizer.json", "letters/to.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes((home / "model.gguf").read_bytes())
    assert [each.name for each in all_models(tmp_path, {"HOME": str(tmp_path)})] == ["graph", "plain"]


def test_usual_places_that_were_moved_are_searched(home: Path, tmp_path: Path) -> None:
    theirs = home / ".lmstudio" / "models"
    (tmp_path / "studio").mkdir()
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{tmp_path / 'studio'}\n")
    (tmp_path / "studio" / "settings.json").write_text(json.dumps({"downloadsFolder": str(theirs)}))
    caches = {"XDG_CACHE_HOME": str(home / ".cache")}
    hub = {"HUGGINGFACE_HUB_CACHE": str(home / ".cache" / "huggingface" / "hub")}
    for moved in (caches, hub):
        found = all_models(tmp_path / "none", {"HOME": str(tmp_path), **moved})
        assert {each.store for each in found} == {"LM Studio", "Hugging Face"}


def test_an_onnx_model_of_the_hubs_cache_is_named_as_its_repository(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--tiny-ONNX" / "snapshots" / "0123"
    (snapshot / "onnx").mkdir(parents=True)
    for name in ("onnx/model_q4.onnx", "tokenizer.json"):
        (snapshot / name).write_bytes(b"x")
    (found,) = all_models(tmp_path / "none", {"HOME": str(tmp_path), "HF_HOME": str(tmp_path)})
    assert (found.name, found.path, found.store) == ("org/tiny-ONNX", snapshot, "Hugging Face")
    assert locate("org/tiny-ONNX", tmp_path / "none", {"HOME": str(tmp_path), "HF_HOME": str(tmp_path)}) == found


def test_variables_of_other_programs_say_where_they_keep_models(home: Path, tmp_path: Path) -> None:
    (tmp_path / "ollama").symlink_to(home / ".ollama" / "models")
    (tmp_path / "hub").symlink_to(home / ".cache" / "huggingface" / "hub")
    moved = {"HOME": str(tmp_path), "OLLAMA_MODELS": str(tmp_path / "ollama"), "HF_HUB_CACHE": str(tmp_path / "hub")}
    assert {each.store for each in all_models(tmp_path / "none", moved)} == {"ollama", "Hugging Face"}


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_linked_folders_and_files_are_found_and_dangling_ones_are_not(tmp_path: Path) -> None:
    disk, own, studio = tmp_path / "disk", tmp_path / "own", tmp_path / ".lmstudio" / "models"
    for folder in (disk / "maker" / "one", disk / "two", own, studio / "other"):
        folder.mkdir(parents=True)
    write_gguf(disk / "maker" / "one" / "a.gguf")
    write_gguf(disk / "two" / "b.GGUF")
    (studio / "maker").symlink_to(disk / "maker")
    (studio / "other" / "two").symlink_to(disk / "two")
    (studio / "other" / "circle").symlink_to(studio)
    (own / "c.gguf").symlink_to(disk / "two" / "b.GGUF")
    (own / "gone.gguf").symlink_to(disk / "nothing.gguf")
    environment = {"HOME": str(tmp_path)}
    found = {each.name for each in all_models(own, environment)}
    assert found == {"c", "maker/one/a.gguf", "other/two/b.GGUF"}
    for name in found:
        located = locate(name, own, environment)
        assert located is not None and inspect(located.path).n_vocab == 384


@pytest.mark.parametrize("ending", [".gguf", ".GGUF", ".Gguf"])
def test_endings_in_capitals_are_listed_run_and_removed(tmp_path: Path, ending: str) -> None:
    write_gguf(tmp_path / f"Big{ending}")
    assert [each.name for each in all_models(tmp_path, {"HOME": str(tmp_path)})] == ["Big"]
    located = locate("Big", tmp_path, {})
    assert located is not None and located.path == tmp_path / f"Big{ending}"
    assert remove("Big", tmp_path)
    assert not list(tmp_path.iterdir())


def test_models_of_ollama_may_leave_out_the_usual_tag(tmp_path: Path) -> None:
    """And its first versions named blobs otherwise."""
    models = tmp_path / ".ollama" / "models"
    manifest = models / "manifests" / "registry.ollama.ai" / "library" / "linked"
    for folder in (models / "blobs", manifest):
        folder.mkdir(parents=True)
    blob = write_gguf(models / "blobs" / "sha256:abc")
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:abc"}
    for tag in ("latest", "1b"):
        (manifest / tag).write_text(json.dumps({"layers": [layer]}))
    environment = {"HOME": str(tmp_path)}
    for name in ("linked", "linked:latest", "linked:1b"):
        found = locate(name, tmp_path / "own", environment)
        assert found is not None and found.path == blob
    with pytest.raises(ModelNotFound, match=r"there is no model 'linked:2b'; did you mean linked:1b\?"):
        locate("linked:2b", tmp_path / "own", environment)
