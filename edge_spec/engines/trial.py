"""Try in another process what may end this one: reading strange files with the library that will read them.

Libraries in C end the process where a file contradicts itself in a way that they did not think of. So the first time
that a file is seen, a child reads its vocabulary and makes a context without weights. What the file did is remembered
with all that it depends on: a GGUF's fingerprint, which covers all but its weights, or all of a ``tokenizer.json``, and
the versions of the libraries. What others did, who ended the child or held it up, is no fault of the file.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

from edge_spec.engines.base import Engine, installed
from edge_spec.engines.records import FOLDER, read_record, write_record
from edge_spec.engines.trial_child import SECONDS, main
from edge_spec.errors import BackendError, UnsupportedModel
from edge_spec.foreign import open_regular
from edge_spec.models import ModelFile
from edge_spec.models.onnx.config_files import TOKENIZER

__all__ = ["require_sound"]

_VERSION = 5
_TOKENIZERS = "tokenizers"
_PATIENCE_S = 60.0
"""For each file, by the clock; the child itself counts the processor's time, where it can."""

_TRIES = 2
_FROM_OUTSIDE = frozenset(("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))


@contextmanager
def require_sound(files: Iterable[tuple[ModelFile, Sequence[Engine]]], *, cache_dir: Path | None) -> Iterator[None]:
    """Refuse model files that end a process that reads them; each is tried once, while the block does something else.

    Args:
        files: each with the engines that may read it.

    Raises:
        UnsupportedModel: one did; at the end of the block. BackendError: it could not be tried.
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
    found, disturbance = _faults(child, strange)
    for each, fault in found.items():
        each.remember(fault, cache_dir)
        faults[each] = fault
    for each, known in faults.items():
        if known:
            again = f", or remove {each.record(cache_dir)} to try it again" if cache_dir is not None else ""
            raise UnsupportedModel(
                f"{each.path} {known}", hint=f"it is damaged or made to do harm; get the model from elsewhere{again}"
            )
    if disturbance:
        untried = next(each for each in strange if each not in found)
        raise BackendError(f"{untried.path} could not be tried: {disturbance}", hint="run it again")


@dataclass(frozen=True)
class _Tried:
    """A file that is tried.

    Attributes:
        content: a hash of all that is read.
        tokenizes: text is also turned into tokens and back. A trimmed drafter and a head never do that: their
            vocabularies lack tokens that the library would look for, or are not there.
        readers: what reads it as the engines do that may read it, see ``Engine.reader``.
        libraries: what these stand on, or what reads a ``tokenizer.json``; in which versions.
    """

    path: Path
    content: str
    tokenizes: bool
    readers: tuple[str, ...]
    libraries: tuple[str, ...]

    @classmethod
    def of(cls, file: ModelFile, engines: Sequence[Engine]) -> _Tried:
        path = file.path if file.graph is None else file.graph.folder / TOKENIZER
        content = file.fingerprint
        reading = [each for each in engines if each.reader]
        libraries = [each.package for each in reading]
        if file.graph is not None:
            # Without it there is nothing to read, which whoever opens it will say.
            with suppress(OSError):
                content = _digest(path)
            libraries.append(_TOKENIZERS)
        return cls(
            path,
            content,
            file.trimmed is None and file.head is None,
            tuple(each.reader for each in reading),
            tuple(f"{name} {installed(name)}" for name in libraries),
        )

    def known(self, cache_dir: Path | None) -> str | None:
        """Return what it did to a process, as a clause, empty if nothing; None if it has not been tried."""
        fault = _tried_here().get(self)
        if fault is None and cache_dir is not None:
            fault = read_record(self.record(cache_dir)).get("fault")
        return fault if isinstance(fault, str) else None

    def remember(self, fault: str, cache_dir: Path | None) -> None:
        _tried_here()[self] = fault
        if cache_dir is not None:
            write_record(self.record(cache_dir), {"fault": fault})

    def record(self, cache_dir: Path) -> Path:
        """Return where it is remembered."""
        key = f"{_VERSION} {self.content} {self.tokenizes} {self.readers} {self.libraries}"
        return cache_dir / FOLDER / f"tried-{blake2b(key.encode(), digest_size=12).hexdigest()}.json"


def _digest(path: Path) -> str:
    state = blake2b(digest_size=16)
    with open_regular(path) as file:
        while piece := file.read(1 << 20):
            state.update(piece)
    return state.hexdigest()


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


def _faults(child: subprocess.Popen[bytes] | None, files: Sequence[_Tried]) -> tuple[dict[_Tried, str], str]:
    """Return what files did to a child, as clauses, empty if nothing, and what kept it from reading others.

    Others read those that it did not come to.
    """
    if child is None:
        # Nothing was learned of them, so nothing is remembered.
        return {}, ""
    found: dict[_Tried, str] = {}
    left, tries = list(files), 0
    while True:
        said, fault, disturbance = _ended(child, _PATIENCE_S * len(left))
        lines = said.decode("utf-8", "replace").split("\n")[:-1]
        found |= zip(left, lines, strict=False)
        del left[: len(lines)]
        if left and fault:
            found[left.pop(0)] = fault
        tries = tries + 1 if disturbance else 0
        if not left or not (fault or disturbance):
            return found, ""
        if tries == _TRIES:
            return found, disturbance
        if (another := _begun(left)) is None:
            return found, disturbance
        child = another


def _ended(child: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, str, str]:
    """Return what a child has printed, and clauses that say what its file and other programs did to it."""
    try:
        said, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate()[0], "", f"reading it was not done after {seconds:g} s"
    if child.returncode >= 0:
        return said, "", ""
    known = {each.value: each.name for each in signal.Signals}
    name = known.get(-child.returncode, str(-child.returncode))
    if name in _FROM_OUTSIDE:
        return said, "", f"the process that read it was ended from outside ({name})"
    if name == "SIGXCPU":
        return said, f"takes more than {SECONDS} s of the processor to read", ""
    return said, f"ends a process that reads it ({name})", ""
