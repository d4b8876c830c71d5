"""Laws of what type checkers see of an installation: a user's program passes at their strictest, mistakes do not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("basedpyright")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
TYPING = ROOT / "tests" / "typing"
PROGRAMS = ("program.py", "window.py", "client.py")
MARK = re.compile(r"  # type: ignore\[.*")


@pytest.fixture(scope="module", params=["normal", "editable"])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter for which the package is installed, and whatever it needs lies behind it."""
    folder = tmp_path_factory.mktemp(request.param)
    copy, environment = folder / "edge-spec", folder / "environment"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    names = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", names))
    others = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "others.pth").write_text("\n".join(others), encoding="utf-8")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    wheels = [*Path(os.environ.get("EDGE_SPEC_WHEELS", folder)).glob("edge_spec-*.whl")]
    how = ["--no-build-isolation", "--ignore-installed", "--config-settings", "editable_mode=strict"]
    what = ["-e", str(copy)] if request.param == "editable" else [str(each) for each in wheels or [copy]]
    # No checker looks at what is compiled.
    compiler = folder / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ $# -gt 0 ]; do if [ "$1" = -o ]; then : > "$2"; fi; shift; done\n')
    compiler.chmod(0o755)
    subprocess.run([*install, *how, *what], check=True, env={**os.environ, "CC": str(compiler)})
    return python


def checked(command: Sequence[object], folder: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout, done.stderr
    return done.stdout


def lines_refused() -> list[int]:
    """The lines of a program with mistakes that checkers have to refuse, from 1."""
    lines = (TYPING / "options.py").read_text("utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if MARK.search(line)]


def test_mypy_reads_an_installation(python: Path, tmp_path: Path) -> None:
    """What is marked as a mistake has to be one: a mark of what mypy does not see is an error itself."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        python,
        "--cache-dir",
        tmp_path / "cache",
    ]
    files = [shutil.copy(TYPING / name, tmp_path) for name in (*PROGRAMS, "options.py")]
    assert checked([*command, *files], tmp_path).strip() == "Success: no issues found in 4 source files"


def test_pyright_reads_an_installation(python: Path, tmp_path: Path) -> None:
    for name in PROGRAMS:
        shutil.copy(TYPING / name, tmp_path)
    (tmp_path / "options.py").write_text(MARK.sub("", (TYPING / "options.py").read_text("utf-8")), encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "pythonVersion": "3.11"}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", python, "-p", tmp_path]
    told = json.loads(checked(command, tmp_path))["generalDiagnostics"]
    found = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in told}
    refused = lines_refused()
    assert len(refused) >= 6
    assert found == {("options.py", line) for line in refused}, told
