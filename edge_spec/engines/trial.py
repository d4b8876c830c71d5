"""Try in another process what may end this one: reading strange files with the library that will read them.

Libraries in C end the process where a file contradicts itself in a way that they did not think of. So the first time
that a file is seen, a child reads its vocabulary and makes a context without weights; how it ended is remembered with
the file's fingerprint, which covers all but its weights.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

from edge_spec.engines.base import Engine, installed
from edge_spec.engines.records import FOLDER, read_record, write_record
from edge_spec.engines.trial_child import main
from edge_spec.errors import UnsupportedModel
from edge_spec.models import ModelFile
from edge_spec.models.onnx.config_files import TOKENIZER

__all__ = ["require_sound"]

_VERSION = 4
_TOKENIZERS = "tokenizers"
_SECONDS = 20.0
"""For each file."""


@contextmanager
def require_sound(files: Iterable[tuple[ModelFile, Sequence[Engine]]], *, cache_dir: Path | None) -> Iterator[None]:
    """Refuse model files that end a process that reads them; each is tried once, while the block does something else.

    Args:
        files: each with the engines that may read it.

    Raises:
        UnsupportedModel: one did; at the end of the block.
    """
    asked = {_Tried.of(file, engines): None for file, engines in files}
    faults = {each: each.known(cache_dir) for each in asked}
    strange = [each for each, fault in faults.items() if fault is None]
    child = _begun(strange) if strange else None
    try:
        yield
    except BaseException:
        if child is not None:
            child.kill()
            child.communicate()
        raise
    for each, fault in _faults(child, strange).items():
        each.remember(fault, cache_dir)
        faults[each] = fault
    for each, known in faults.items():
        if known:
            raise UnsupportedModel(
                f"{each.path} {known}", hint="it is damaged or made to do harm; get the model from elsewhere"
            )


@dataclass(frozen=True)
class _Tried:
    """A file that is tried.

    Attributes:
        tokenizes: text is also turned into tokens and back. A trimmed drafter never does that: its vocabulary lacks
            tokens that the library would look for.
        readers: what reads it as the engines do that may read it, see ``Engine.reader``.
        libraries: what these stand on, and the tokenizers; in which versions.
    """

    path: Path
    fingerprint: str
    tokenizes: bool
    readers: tuple[str, ...]
    libraries: tuple[str, ...]

    @classmethod
    def of(cls, file: ModelFile, engines: Sequence[Engine]) -> _Tried:
        path = file.path if file.graph is None else file.graph.folder / TOKENIZER
        reading = [each for each in engines if each.reader]
        libraries = (_TOKENIZERS, *(each.package for each in reading))
        return cls(
            path,
            file.fingerprint,
            file.trimmed is None,
            tuple(each.reader for each in reading),
            tuple(f"{name} {installed(name)}" for name in libraries),
        )

    def known(self, cache_dir: Path | None) -> str | None:
        """Return what it did to a process, as a clause, empty if nothing; None if it has not been tried."""
        fault = _tried_here().get(self)
        if fault is None and cache_dir is not None:
            fault = read_record(self._record(cache_dir)).get("fault")
        return fault if isinstance(fault, str) else None

    def remember(self, fault: str, cache_dir: Path | None) -> None:
        _tried_here()[self] = fault
        if cache_dir is not None:
            write_record(self._record(cache_dir), {"fault": fault})

    def _record(self, cache_dir: Path) -> Path:
        key = f"{_VERSION} {self.fingerprint} {self.readers} {self.libraries}"
        return cache_dir / FOLDER / f"tried-{blake2b(key.encode(), digest_size=12).hexdigest()}.json"


@cache
def _tried_here() -> dict[_Tried, str]:
    """Return what this process knows of files, for those who keep nothing on the disk."""
    return {}


def _begun(files: Sequence[_Tried]) -> subprocess.Popen[bytes] | None:
    """Start a child that reads files in their order; None where there can be none."""
    # A frozen program cannot run itself as Python.
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    call = f"from {main.__module__} import main; main({[(each.tokenizes, each.readers) for each in files]})"
    command = [sys.executable, "-P", "-c", call, *(str(each.path.absolute()) for each in files)]
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
    except (OSError, ValueError):  # no room for another process
        return None


def _faults(child: subprocess.Popen[bytes] | None, files: Sequence[_Tried]) -> dict[_Tried, str]:
    """Return what files did to a child, as clauses, empty if nothing; others read those that it did not come to."""
    faults = dict.fromkeys(files, "")
    left = list(files)
    while left and child is not None:
        said, fault = _ended(child, _SECONDS * len(left))
        lines = said.decode("utf-8", "replace").split("\n")[:-1]
        faults |= zip(left, lines, strict=False)
        del left[: len(lines)]
        if not fault or not left:
            break
        faults[left.pop(0)] = fault
        child = _begun(left) if left else None
    return faults


def _ended(child: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, str]:
    """Return what a child has said, and what ended it, as a clause; empty if it came to its end."""
    try:
        said, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate()[0], f"takes more than {_SECONDS:g} s to read"
    code = child.returncode
    if code >= 0:
        return said, ""
    name = signal.Signals(-code).name if -code in set(signal.Signals) else code
    return said, f"ends a process that reads it ({name})"
