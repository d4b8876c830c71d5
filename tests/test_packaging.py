"""Laws of the package: what is on disk is in the wheel, and importing it is cheap."""

from __future__ import annotations

import itertools
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from importlib.resources import files
from pathlib import Path

import pytest

import edge_spec
from edge_spec.extras import how_to_install, not_installed

ROOT = Path(__file__).parent.parent
FOLDERS = {"edge_spec": "edge_spec"} | {name: f"edge_spec.{name}" for name in ("models", "memory", "cli")}


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
    for folder in (*FOLDERS, "training"):
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), f"{module.parent} is no package"


def test_training_is_a_distribution_of_its_own() -> None:
    """Both have one version, and the wheel of what trains has every folder of it."""
    product, training = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8")) for folder in ("", "training")
    )
    version = product["project"]["version"]
    assert training["project"]["version"] == version
    own, *others = training["project"]["dependencies"]
    assert own == f"edge-spec=={version}"
    assert product["project"]["optional-dependencies"]["training"] == others
    folders = {module.parent.relative_to(ROOT).as_posix() for module in (ROOT / "training").rglob("*.py")}
    assert set(training["tool"]["setuptools"]["packages"]) == {
        f"edge_spec.{name.replace('/', '.')}" for name in folders
    }


def test_types_and_models_come_with_the_package() -> None:
    assert files("edge_spec").joinpath("py.typed").is_file()
    demo = files("edge_spec.models.demo")
    for name in ("family.json", "README.md", "target-q4_0.gguf", "intermediate-q4_0.gguf", "drafter-q4_0.gguf"):
        assert demo.joinpath(name).is_file()
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    assert patterns["edge_spec.engines.onnx.kernels"] == ["src/shared.h"]  # read by both languages
    for path in (ROOT / "models" / "demo").iterdir():
        if path.suffix not in (".py", "") and path.is_file():
            assert any(path.match(pattern) for pattern in patterns["edge_spec.models.demo"]), path


def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = ("llama_cpp", "numpy", "onnxruntime", "gguf", "jinja2", "rich", "psutil")
    code = f"import sys, edge_spec, edge_spec.errors; print([name for name in {heavy} if name in sys.modules])"
    assert run(code).strip() == "[]"
    code = f"import sys, edge_spec.models, edge_spec.memory; print([n for n in {heavy[:4]} if n in sys.modules])"
    assert run(code).strip() == "[]"


@pytest.mark.parametrize("extra", ["serve", "hub", "heads", "llama", "training", "benchmarks"])
def test_what_an_extra_brings_can_be_installed_from_anywhere(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"][extra]
    command = how_to_install(extra)
    typed, _, remark = command.partition(" (")
    assert shlex.split(typed) == ["pip", "install", *packages]
    assert remark == ("compiles for minutes)" if extra == "llama" else "")
    assert str(not_installed("this", extra)) == f"this is not installed; run: {command}"

    def missing(distribution: str) -> None:
        raise PackageNotFoundError(distribution)

    monkeypatch.setattr("importlib.metadata.requires", missing)
    assert how_to_install(extra).partition(" (")[0] == f'pip install ".[{extra}]"'


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "missing", "extra", "wrong", "fault"),
    [
        ("serve", "uvicorn", "serve", "--port -1", "--port is -1"),
        ("pull org/repo", "huggingface_hub", "hub", "--memory lots", "--memory is 'lots'"),
        ("drafter make demo --texts . --out o", "torch", "training", "--width 100", "--width is 100"),
    ],
)
def test_a_verb_says_what_it_lacks_and_wrong_options_first(
    command: str, missing: str, extra: str, wrong: str, fault: str, tmp_path: Path
) -> None:
    def said(arguments: str) -> tuple[int, str, str]:
        code = f"import sys; sys.modules[{missing!r}] = None; from edge_spec.cli import main; main({arguments.split()})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    library = {"torch": "PyTorch"}.get(missing, missing)
    lacks = f"edge-spec: error: {library} is not installed; run: {how_to_install(extra)}\n"
    assert said(command) == (1, "", lacks)
    code, out, error = said(f"{command} {wrong}")
    assert (code, out) == (2, "") and error.startswith(f"edge-spec: error: {fault}")


def test_what_reads_strangers_is_of_versions_that_were_tried() -> None:
    """Parsers of requests, templates and grammars have upper bounds, whichever extra brings them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    every = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    others = ("llama-cpp-python", "tokenizers", "safetensors")
    for name in ("starlette", "uvicorn", "h11", "jinja2", "llguidance", *others):
        wanted = [each for each in every if each.split("[")[0].partition(">")[0].partition("<")[0] == name]
        assert any("<" in each and ">=" in each for each in wanted), name


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
