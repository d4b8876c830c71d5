"""Laws of the wheel: it holds the whole package and nothing else, and computes what a checkout computes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
LIBRARY = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a clean copy of the checkout, so that nothing built earlier gets into it."""
    copy, out = tmp_path_factory.mktemp("copy") / "edge-spec", tmp_path_factory.mktemp("wheel")
    built = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "*.dylib", "*.dll")
    shutil.copytree(ROOT, copy, ignore=built)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(copy)], check=True
    )
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(wheel)]
    subprocess.run(pip, check=True)
    return folder


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


def test_a_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert names == set(on_disk())


def test_the_kernels_of_a_wheel_pass_their_tests(installed: Path, tmp_path: Path) -> None:
    """In a fresh folder, where nothing of the checkout but its tests can be found."""
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests" / "test_home.py").write_text(
        f"import edge_spec\nfrom edge_spec.engines.onnx import kernels\nfrom edge_spec.sampling import native\n\n"
        f"def test_home():\n    assert edge_spec.__file__.startswith({str(installed)!r})\n"
        "    assert kernels.available() is None\n    assert native._function() is not None\n",
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
