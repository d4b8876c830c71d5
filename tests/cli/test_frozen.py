"""Laws of frozen programs: PyInstaller finds what they need, and what is missing is named."""

from __future__ import annotations

import runpy
import sys
import types
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from edge_spec.errors import ModelNotFound
from edge_spec.models import resolve


def test_pyinstaller_is_told_of_models_libraries_verbs_and_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hook asks PyInstaller to collect, with the few functions that it uses of it."""
    (entry,) = [entry for entry in entry_points(group="pyinstaller40") if entry.value.startswith("edge_spec.")]
    (folder,) = entry.load()()
    asked: dict[str, list[Any]] = {}

    def remember(name: str) -> Any:
        def call(package: str, **more: Any) -> list[tuple[str, str]]:
            asked.setdefault(name, []).append((package, more))
            return [(package, name)]

        return call

    hooks = types.ModuleType("PyInstaller.utils.hooks")
    for name in ("collect_data_files", "collect_dynamic_libs", "collect_submodules", "copy_metadata"):
        setattr(hooks, name, remember(name))
    for name in ("PyInstaller", "PyInstaller.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "PyInstaller.utils.hooks", hooks)
    found = runpy.run_path(str(Path(folder) / "hook-edge_spec.py"))
    assert found["binaries"] and found["datas"] and found["hiddenimports"]
    assert {package for package, _ in asked["collect_dynamic_libs"]} == {"edge_spec", "llama_cpp"}
    assert [package for package, _ in asked["collect_data_files"]] == ["edge_spec"]
    ((_, more),) = asked["collect_submodules"]
    assert more["filter"]("edge_spec.cli.run") and more["filter"]("edge_spec.engines.onnx.engine")
    assert not more["filter"]("edge_spec.training.train")
    # Files that lie where the collection looks.
    assert files("edge_spec.models.demo").joinpath("target-q4_0.gguf").is_file()


def test_missing_package_data_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    with pytest.raises(ModelNotFound, match=r"models that come with edge-spec are missing.*--collect-data edge_spec"):
        resolve("demo")
