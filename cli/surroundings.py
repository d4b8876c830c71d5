"""Check what the command needs; without it libraries would end the process with messages of their own."""

from __future__ import annotations

import os
from math import inf

import platformdirs

from edge_spec.errors import EdgeSpecError

__all__ = ["require_surroundings"]

_MIB = 1 << 20
_LIBRARIES, _PER_CORE = 320 * _MIB, 64 * _MIB
"""Address space of libraries and the smallest model, and of BLAS and threads per core. On two cores 350 MiB were
enough."""

_FILES = 32
"""Open files: libraries, a model in parts, pipes to another process, an event loop and a few clients."""


def require_surroundings() -> None:
    """Raise if the process has too few resources to run.

    Raises:
        EdgeSpecError: too little address space, too few files, or a user without a home.
    """
    needed, most = _LIBRARIES + _PER_CORE * (os.cpu_count() or 1), _limit("RLIMIT_AS")
    if most < needed:
        raise EdgeSpecError(
            f"address space is limited to {most // _MIB} MiB, and libraries reserve {needed // _MIB} MiB",
            hint=f"raise the limit: ulimit -v {needed // 1024}; --memory bounds what is used of it",
        )
    if (most := _limit("RLIMIT_NOFILE")) < _FILES:
        raise EdgeSpecError(
            f"no more than {most} files can be open at once, and {_FILES} are needed",
            hint=f"raise the limit: ulimit -n {_FILES}",
        )
    try:
        folders = [folder() for folder in (platformdirs.user_config_path, platformdirs.user_data_path)]
    except RuntimeError:
        folders = []
    # platformdirs before 4.6 returned a path with an unexpanded tilde.
    if not folders or not all(folder.is_absolute() for folder in folders):
        raise EdgeSpecError("this user has no home", hint="set HOME to a folder where caches and settings can be kept")


def _limit(name: str) -> float:
    try:
        import resource
    except ImportError:  # Windows
        return inf
    most = resource.getrlimit(getattr(resource, name))[0]
    return inf if most == resource.RLIM_INFINITY else most
