"""Laws of the wheels: each holds its whole package and nothing else, and they compute what a checkout computes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
LIBRARY = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name: those in the folder ``EDGE_SPEC_WHEELS``, or of a clean copy of the checkout, where nothing is built."""
    if built_before := os.environ.get("EDGE_SPEC_WHEELS"):
        return {path.name.partition("-")[0]: path for path in Path(built_before).glob("*.whl")}
    copy, out = tmp_path_factory.mktemp("copy") / "edge-spec", tmp_path_factory.mktemp("wheel")
    built = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "*.dylib", "*.dll")
    shutil.copytree(ROOT, copy, ignore=built)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out)]
    subprocess.run([*pip, str(copy), str(copy / "training")], check=True)
    return {path.name.partition("-")[0]: path for path in out.glob("*.whl")}


@pytest.fixture(scope="module")
def install(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Installs wheels of some names into a folder of their own."""

    def into_a_folder(*names: str) -> Path:
        folder = tmp_path_factory.mktemp("installed")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, *(str(wheels[name]) for name in names)], check=True)
        return folder

    return into_a_folder


def names_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}


def on_disk() -> Iterator[str]:
    """Every file of the package and its libraries, by the names that a wheel should have them under."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    for top, root in settings["package-dir"].items():
        for init in sorted((ROOT / root).rglob("__init__.py")):
            package = ".".join((top, *init.parent.relative_to(ROOT / root).parts))
            for pattern in ("*.py", *settings["package-data"].get(package, ())):
                for path in init.parent.glob(pattern):
                    yield f"{package.replace('.', '/')}/{path.relative_to(init.parent).as_posix()}"
    yield f"edge_spec/engines/onnx/kernels/rows{LIBRARY}"
    yield f"edge_spec/sampling/draw{LIBRARY}"
    yield f"edge_spec/memory/lost_pages{LIBRARY}"


def test_a_wheel_holds_the_package_and_nothing_else(wheels: dict[str, Path]) -> None:
    assert names_in(wheels["edge_spec"]) == set(on_disk())


def test_the_wheel_of_training_holds_training_and_nothing_else(wheels: dict[str, Path]) -> None:
    modules = (path.relative_to(ROOT).as_posix() for path in (ROOT / "training").rglob("*.py"))
    assert names_in(wheels["edge_spec_training"]) == {f"edge_spec/{name}" for name in modules}


def test_a_verb_of_another_distribution_is_there_with_it_and_else_says_where_it_is(
    install: Callable[..., Path], tmp_path: Path
) -> None:
    said = []
    for names in (("edge_spec",), ("edge_spec", "edge_spec_training")):
        # Other packages are those of this environment, whose edge-spec is editable: its finder would be asked first.
        code = "sys.meta_path[:] = [finder for finder in sys.meta_path if 'ditable' not in repr(finder)]"
        code = f"import sys\n{code}\nfrom edge_spec.cli import main\nmain(['drafter', 'make', 'demo'])"
        environment = {**os.environ, "PYTHONPATH": str(install(*names))}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        said.append((done.returncode, done.stderr))
    assert said[0] == (
        1,
        "edge-spec: error: the verb 'drafter' is not installed; run in edge-spec's sources: pip install ./training\n",
    )
    assert said[1] == (
        2,
        "edge-spec: error: Missing option '--texts'; see 'edge-spec drafter make --help'\n",
    )


def test_the_kernels_of_a_wheel_pass_their_tests(install: Callable[..., Path], tmp_path: Path) -> None:
    """In a fresh folder, where nothing of the checkout but its tests can be found."""
    installed = install("edge_spec")
    for folder in ("tests", "benchmarks"):
        # Tests borrow models of some shapes from benchmarks.
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests" / "test_home.py").write_text(
        f"import edge_spec\nfrom edge_spec.engines.onnx import kernels\nfrom edge_spec.sampling import native\n\n"
        f"def test_home():\n    assert edge_spec.__file__.startswith({str(installed)!r})\n"
        "    assert kernels.available() is None\n    assert native._library() is not None\n",
        encoding="utf-8",
    )
    files = ["test_home.py", "engines/test_kernels.py", "engines/test_kernels_operators.py", "laws/test_native_draw.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(f"tests/{file}" for file in files)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
