"""Laws of the package: what is on disk is in the wheel, and importing it is cheap."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

import edge_spec

ROOT = Path(__file__).parent.parent
FOLDERS = {"edge_spec": "edge_spec"} | {name: f"edge_spec.{name}" for name in ("models", "memory", "cli", "training")}


def run(code: str, *, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_lies_in_a_package() -> None:
    """A folder without ``__init__.py`` works in an editable install and is silently absent from the wheel."""
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-dir"] == {
        package: folder for folder, package in FOLDERS.items()
    }
    for folder in FOLDERS:
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), f"{module.parent} is no package"


def test_types_and_models_come_with_the_package() -> None:
    assert files("edge_spec").joinpath("py.typed").is_file()
    demo = files("edge_spec.models.demo")
    for name in ("family.json", "README.md", "target-q4_0.gguf", "intermediate-q4_0.gguf", "drafter-q4_0.gguf"):
        assert demo.joinpath(name).is_file()
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    for path in (ROOT / "models" / "demo").iterdir():
        if path.suffix not in (".py", "") and path.is_file():
            assert any(path.match(pattern) for pattern in patterns["edge_spec.models.demo"]), path


def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = ("llama_cpp", "numpy", "onnxruntime", "gguf", "jinja2", "rich", "psutil")
    code = f"import sys, edge_spec, edge_spec.errors; print([name for name in {heavy} if name in sys.modules])"
    assert run(code).strip() == "[]"
    code = f"import sys, edge_spec.models, edge_spec.memory; print([n for n in {heavy[:4]} if n in sys.modules])"
    assert run(code).strip() == "[]"


@pytest.mark.parametrize("folder", ["models", "memory", "cli", "training"])
def test_folders_are_no_packages_of_their_own(folder: str) -> None:
    code = f"try:\n    import {folder}\nexcept ImportError as error:\n    print(error)\nelse:\n    print('imported')"
    assert f"edge_spec.{folder}" in run(code, cwd=ROOT)


def test_every_public_name_is_there() -> None:
    for name in edge_spec.__all__:
        assert getattr(edge_spec, name).__name__ == name
    assert set(edge_spec.__all__) <= set(dir(edge_spec))
    with pytest.raises(AttributeError, match="nothing"):
        _ = edge_spec.nothing
