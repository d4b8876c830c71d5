"""Laws of the model folder: nothing in it is replaced, and no disk is filled by half a model."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fake_hub import FakeHub, client, fail

from edge_spec.errors import DiskFull, DownloadError, ModelNotFound, SettingsError
from edge_spec.library.finding import find
from edge_spec.library.partial import Partial, held_elsewhere, interrupted
from edge_spec.library.pulling import check_name, pull, remove, to_fetch
from edge_spec.library.storage import clear, kept_in
from edge_spec.library.wanted import wanted
from edge_spec.models import inspect, resolve_family

pytest.importorskip("huggingface_hub")


def test_what_another_program_has_is_linked_to(hub: FakeHub, models: dict[str, bytes], tmp_path: Path) -> None:
    theirs = tmp_path / ".lmstudio" / "models" / "org" / "repo" / "other name.gguf"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(models["target"])
    theirs.with_name("same size.gguf").write_bytes(bytes(len(models["target"])))
    what = find(wanted("org/big-GGUF:Q4_0"), client(hub))
    place = pull(what, client(hub), tmp_path / "models", {"HOME": str(tmp_path)})
    assert hub.asked == []
    assert (place / "big-Q4_0.gguf").resolve() == theirs.resolve()
    assert inspect(resolve_family(place).target).n_vocab == 384
    remove("big-Q4_0", tmp_path / "models")
    assert theirs.read_bytes() == models["target"]


def test_a_full_disk_is_told_before_anything_is_fetched(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = find(wanted("org/big-GGUF:Q4_0"), client(hub))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    for attempt in (lambda: to_fetch(what, tmp_path, {}), lambda: pull(what, client(hub), tmp_path, {})):
        with pytest.raises(DiskFull, match="the model in"):
            attempt()
    assert hub.asked == []


def test_all_files_must_fit_the_disk_before_the_first_is_fetched(
    hub: FakeHub, catalogue: Path, models: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = find(wanted("tiny", catalogue), client(hub))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=len(models["target"]) + 1000))
    with pytest.raises(DiskFull, match=r"the model \(2 files\) in"):
        pull(what, client(hub), tmp_path, {})
    assert hub.asked == []


def test_a_disk_that_gets_full_meanwhile_is_told_and_what_came_is_kept(
    hub: FakeHub, models: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = find(wanted("org/big-GGUF:Q4_0"), client(hub))

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match=r"big-Q4_0\.gguf"):
            pull(what, client(hub), tmp_path, {})
    hub.asked.clear()
    place = pull(what, client(hub), tmp_path, {})
    assert hub.asked == []
    assert (place / "big-Q4_0.gguf").read_bytes() == models["target"]


def test_what_has_a_name_is_never_replaced_by_something_else(
    hub: FakeHub, catalogue: Path, models: dict[str, bytes], tmp_path: Path
) -> None:
    what = find(wanted("tiny", catalogue), client(hub))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "own.gguf").write_bytes(b"mine")
    with pytest.raises(SettingsError, match="something else here") as caught:
        pull(what, client(hub), tmp_path, {})
    assert "--as" in str(caught.value.hint) and "edge-spec rm tiny" in str(caught.value.hint)
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["own.gguf"]
    (tmp_path / "other.gguf").write_bytes(b"mine")
    with pytest.raises(SettingsError, match=r"other\.gguf"):
        check_name(replace(what, name="other"), tmp_path)
    with pytest.raises(SettingsError, match="comes with edge-spec"):
        check_name(replace(what, name="demo"), tmp_path)


def test_a_drafter_is_added_to_a_model_that_was_fetched_alone(
    hub: FakeHub, catalogue: Path, models: dict[str, bytes], tmp_path: Path
) -> None:
    what = find(wanted("tiny", catalogue), client(hub))
    place = pull(replace(what, files={"target": what.files["target"]}), client(hub), tmp_path, {})
    assert resolve_family(place).draft is None
    hub.asked.clear()
    assert pull(what, client(hub), tmp_path, {}) == place
    assert {path for path, _, _ in hub.asked} == {"small-Q4_0.gguf"}
    family = resolve_family(place)
    assert family.draft is not None and family.draft.read_bytes() == models["draft"]


def test_a_model_appears_with_all_its_files_at_once(
    hub: FakeHub, catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked for, and when: under its name there is nothing, or everything."""
    what = find(wanted("tiny", catalogue), client(hub))
    seen = []
    pull(what, client(hub), tmp_path, {}, lambda *step: seen.append((tmp_path / "tiny").exists()))
    assert not any(seen[:-1]) and seen[-1]


def test_two_processes_do_not_write_one_file(hub: FakeHub, models: dict[str, bytes], tmp_path: Path) -> None:
    what = find(wanted("org/big-GGUF:Q4_0"), client(hub))
    (file,) = what.files["target"]
    with Partial(tmp_path, file).alone():
        ((_, folder),) = interrupted(tmp_path)
        assert held_elsewhere(folder)
        with pytest.raises(DownloadError, match=r"another edge-spec is fetching big-Q4_0\.gguf"):
            pull(what, client(hub), tmp_path, {})
        kept = next(each for each in kept_in(tmp_path / "caches", tmp_path / "data", tmp_path))
        assert (kept.kind, kept.name, clear(kept)) == ("download", "big-Q4_0.gguf", False)
    pull(what, client(hub), tmp_path, {})


def test_what_is_left_of_a_download_can_be_cleared(hub: FakeHub, tmp_path: Path) -> None:
    what = find(wanted("org/big-GGUF:Q4_0"), client(hub))
    fail(hub, "", "cut", *["broken"] * 20)
    with pytest.raises(DownloadError):
        pull(what, client(hub), tmp_path, {})
    (kept,) = kept_in(tmp_path / "caches", tmp_path / "data", tmp_path)
    assert (kept.kind, kept.name) == ("download", "big-Q4_0.gguf") and kept.n_bytes > 0
    assert clear(kept)
    assert not list(kept_in(tmp_path / "caches", tmp_path / "data", tmp_path))


def test_only_what_is_certainly_a_model_is_removed(tmp_path: Path) -> None:
    letters = tmp_path / "Documents" / "letter.txt"
    letters.parent.mkdir()
    letters.write_text("dear all")
    with pytest.raises(ModelNotFound, match=r"has no family\.json"):
        remove("Documents", tmp_path)
    assert letters.read_text() == "dear all"
