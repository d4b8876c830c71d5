"""setuptools as the build backend, which asks for a C compiler from the package index where the system has none."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flags import FLAGS
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (all other hooks are its own)

__all__ = ["get_requires_for_build_editable", "get_requires_for_build_wheel"]

_COMPILER = "ziglang>=0.13"
"""Clang with all that it needs, some 100 MB."""

_PLATFORMS = ("linux", "darwin"), ("x86_64", "aarch64", "arm64")
"""Where it is and was tried, or is like that; on others the installation succeeds without what is compiled."""

_PROGRAM = Path(__file__).with_name("hardest.c")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_compiler()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_compiler()]


def _compiler() -> list[str]:
    systems, machines = _PLATFORMS
    is_there = sys.platform in systems and platform.machine() in machines
    return [_COMPILER] if is_there and not _compiles() else []


def _compiles() -> bool:
    """Return whether setuptools finds a compiler that works, and is not too old."""
    with TemporaryDirectory() as folder:
        try:
            # What fails here, whatever it is, must not fail the installation.
            from setuptools import Distribution, Extension
            from setuptools.command.build_ext import build_ext

            hardest = Extension("hardest", [str(_PROGRAM)], extra_compile_args=FLAGS["unix"], libraries=["m"])
            build = build_ext(Distribution({"name": "hardest", "ext_modules": [hardest]}))
            build.build_lib = build.build_temp = folder
            build.ensure_finalized()
            build.run()
        except Exception:
            return False
    return True
