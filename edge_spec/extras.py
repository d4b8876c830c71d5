"""Optional dependencies: how to install a missing one.

The package index may not have edge-spec, and the folder that it was installed from may be gone. So the command names
the packages that an extra stands for, which can be installed from anywhere.
"""

from __future__ import annotations

import re

from edge_spec.errors import EdgeSpecError

_COMPILED = ("llama",)
"""Extras with packages that pip compiles without output."""

__all__ = ["how_to_install", "not_installed"]


def how_to_install(extra: str) -> str:
    """Return the command that installs what an extra of pyproject.toml brings, such as ``pip install "torch>=2.6"``.

    Behind it stands in brackets what takes minutes without a word.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        required = requires("edge-spec") or []
    except PackageNotFoundError:  # run from its sources, and never installed
        required = []
    found = [re.fullmatch(r"([^; ]+) *; *extra == \"([\w-]+)\"", each) for each in required]
    packages = [match[1] for match in found if match and match[2] == extra] or [f".[{extra}]"]
    # Without quotes shells take > for a redirection and [] for a pattern.
    command = "pip install " + " ".join(f'"{name}"' if re.search(r"[<>[]", name) else name for name in packages)
    return f"{command} (compiles for minutes)" if extra in _COMPILED else command


def not_installed(library: str, extra: str) -> EdgeSpecError:
    """Return the error for a missing library of an extra."""
    return EdgeSpecError(f"{library} is not installed", hint=f"run: {how_to_install(extra)}")
