"""Builds the parts in C. Everything else about the package is in pyproject.toml.

They are plain shared libraries that ctypes loads; they know nothing of Python, so one build serves every Python
version. Where the system has no working C compiler, ``compiler/backend.py`` asks for one. Without that the package
installs all the same: drawing and memory do their work in Python, and models need another engine.
"""

from __future__ import annotations

import os
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.editable_wheel import editable_wheel
from setuptools.errors import CCompilerError

PROJECT = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))
TRAINING = Path("training", "pyproject.toml")
LIBRARIES = {
    "edge_spec.memory.lost_pages": Path("memory/src"),
    "edge_spec.engines.onnx.kernels.rows": Path("edge_spec/engines/onnx/kernels/src"),
    "edge_spec.sampling.draw": Path("edge_spec/sampling/src"),
}
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
FLAGS = run_path("compiler/flags.py")["FLAGS"]


class BuildLibraries(build_ext):
    def build_extensions(self) -> None:
        one_by_one = self.compiler.compile

        def compile_all(sources: list[str], **how: Any) -> list[str]:
            """Compile as many sources at once as there are processors, beginning with those that take longest."""
            sources = sorted(sources, key=lambda source: "avx512" not in source)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                parts = list(pool.map(lambda source: one_by_one([source], **how), sources))
            return [each for part in parts for each in part]

        self.compiler.compile = compile_all
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        kind = "msvc" if self.compiler.compiler_type == "msvc" else "unix"
        ext.extra_compile_args = FLAGS[kind]
        note = Path(self.get_ext_fullpath(ext.name)).with_name("not_built.txt")
        note.unlink(missing_ok=True)
        try:
            try:
                super().build_extension(ext)
            except CCompilerError:
                if self.compiler.compiler_type == "msvc" or find_spec("ziglang") is None:
                    raise
                # Its own default is this very processor.
                compiler = [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline", "-fPIC"]
                self.compiler.set_executables(compiler_so=compiler, linker_so=[*compiler, "-shared"])
                super().build_extension(ext)
        except Exception as error:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{error}\n", encoding="utf-8")
            raise  # the extension is optional: setuptools prints a warning and goes on

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + SUFFIX

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # no PyInit_: the sources mark what they export


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class Editable(editable_wheel):
    """A checkout also has what its folder ``training`` makes a distribution of its own."""

    def run(self) -> None:
        training = tomllib.loads(TRAINING.read_text("utf-8"))
        self.distribution.packages += training["tool"]["setuptools"]["packages"]
        self.distribution.package_dir["edge_spec.training"] = "training"
        for group, entries in training["project"]["entry-points"].items():
            self.distribution.entry_points[group] = [f"{name} = {value}" for name, value in entries.items()]
        super().run()


setup(
    packages=[
        package
        for name, folder in PROJECT["tool"]["setuptools"]["package-dir"].items()
        for package in (name, *(f"{name}.{inner}" for inner in find_packages(folder)))
    ],
    ext_modules=[
        Extension(
            name,
            sources=sorted(source.as_posix() for source in folder.glob("*.c")),
            depends=sorted(header.as_posix() for header in folder.glob("*.h")),
            libraries=[] if sys.platform == "win32" else ["m"],
            language="c",
            optional=True,
        )
        for name, folder in LIBRARIES.items()
    ],
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": Wheel, "editable_wheel": Editable},
)
