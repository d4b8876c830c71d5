"""Builds llama.cpp's own programs from the very source package that edge-spec depends on.

    python benchmarks/peers/build.py FOLDER [--source UNPACKED_PACKAGE]

pip downloads the source package of the llama-cpp-python that is installed; CMake and Ninja build ``llama-bench`` and
``llama-server`` as a release for this processor, as pip builds the library. Needs a C++ compiler and
``pip install cmake ninja``, and a few minutes on two cores; what is built already stays.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

TARGETS = ("llama-bench", "llama-server")
_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
}


def source_of(folder: Path) -> Path:
    """The unpacked source package of the installed version."""
    name = "llama-cpp-python"
    wanted = f"{name}=={version(name)}"
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", name, "--no-build-isolation"]
    if not list(folder.glob("llama_cpp_python-*.tar.gz")):
        subprocess.run([*pip, wanted, "--dest", str(folder)], check=True)
    archive = next(folder.glob("llama_cpp_python-*.tar.gz"))
    unpacked = folder / archive.name.removesuffix(".tar.gz")
    if not unpacked.exists():
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    return unpacked


def build(folder: Path, source: Path | None = None, *, amx: bool = True) -> Path:
    """Build the programs; their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    without = " ".join(f"-mno-amx-{part}" for part in ("tile", "int8", "bf16"))
    if not all((folder / "bin" / target).exists() for target in TARGETS):
        tree = (source or source_of(folder)) / "vendor" / "llama.cpp"
        flags = {} if amx else {"CMAKE_C_FLAGS": without, "CMAKE_CXX_FLAGS": without}
        options = [f"-D{name}={value}" for name, value in {**_OPTIONS, **flags}.items()]
        if not (folder / "build.ninja").exists():
            subprocess.run(["cmake", "-G", "Ninja", "-S", str(tree), "-B", str(folder), *options], check=True)
        subprocess.run(["ninja", "-C", str(folder), *TARGETS], check=True)
    return folder / "bin"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", type=Path, help="an unpacked source package, instead of downloading it")
    parser.add_argument("--without-amx", action="store_true", help="where llama.cpp's AMX code crashes")
    asked = parser.parse_args()
    print(build(asked.folder, asked.source, amx=not asked.without_amx))
