"""Laws of the installation where there is no working C compiler: one is asked for, and lacking that it succeeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_spec.engines.onnx.kernels import library

ROOT = Path(__file__).parent.parent
LACKING = {
    "a compiler that fails": {"CC": "/bin/false"},
    "none at all": {"PATH": "/nowhere"},
}

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux's ways to have no compiler")


def asked(before: str = "", **environment: str) -> str:
    """What the build backend asks for.

    Args:
        before: code that runs first.
    """
    asks = "import backend; print([each for each in backend.get_requires_for_build_wheel() if 'zig' in each])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "compiler"), **environment}
    command = [sys.executable, "-c", f"{before}\n{asks}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.long
@linux
def test_a_compiler_is_asked_for_where_there_is_none() -> None:
    assert asked() == "[]"
    for environment in LACKING.values():
        assert asked(**environment) == "['ziglang>=0.13']"


@pytest.mark.long
@linux
def test_a_compiler_is_asked_for_where_that_of_the_system_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "old.h").write_text("#pragma GCC poison _mm512_dpbusd_epi32 vdotq_laneq_s32\n", encoding="utf-8")
    for name, header in (("old", "old.h"), ("new", "new.h")):
        (tmp_path / header).touch()
        compiler = tmp_path / name
        compiler.write_text(f'#!/bin/sh\nexec cc -include {tmp_path / header} "$@"\n', encoding="utf-8")
        compiler.chmod(0o755)
        assert asked(CC=str(compiler)) == ("['ziglang>=0.13']" if name == "old" else "[]")


@pytest.mark.long
def test_what_setuptools_keeps_private_is_not_needed() -> None:
    gone = """
import sys, setuptools.build_meta
sys.modules.update({name: None for name in sys.modules if name.startswith("setuptools._distutils")})
"""
    assert asked(gone) in ("[]", "['ziglang>=0.13']")


@pytest.mark.long
@linux
@pytest.mark.parametrize("lacking", LACKING)
def test_without_any_compiler_the_build_succeeds_and_notes_why(lacking: str, tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(tmp_path / "lib")]
    # Where the package that brings one is installed, it is not found.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['ziglang'] = None\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), **LACKING[lacking]}
    command = [*build, "--build-temp", str(tmp_path / "temp")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    notes = sorted(path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("not_built.txt"))
    assert notes == ["lib/edge_spec/engines/onnx/kernels", "lib/edge_spec/memory", "lib/edge_spec/sampling"]
    assert not list(tmp_path.rglob("*.so"))


def test_whoever_needs_the_kernels_then_reads_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_load", lambda: "their C sources did not compile")
    why = library.why_slow()
    assert why is not None and why.endswith("their C sources did not compile")
    with pytest.raises(Exception, match="install a C compiler and reinstall edge-spec, or "):
        library.library_path()
