"""Try in another process what may end this one: reading a strange file with the library that will read it.

Libraries in C end the process where a file contradicts itself in a way that they did not think of. So the first time
that a file is seen, a child reads its vocabulary and makes a context without weights; how it ended is remembered with
the file's fingerprint, which covers all but its weights.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

from edge_spec.engines.records import FOLDER, read_record, write_record
from edge_spec.engines.trial_child import main
from edge_spec.errors import UnsupportedModel
from edge_spec.models import ModelFile
from edge_spec.models.onnx.config_files import TOKENIZER

__all__ = ["require_sound"]

_VERSION = 2
_LIBRARIES = ("llama-cpp-python", "tokenizers")
_SECONDS = 20.0


def require_sound(files: Iterable[ModelFile], *, cache_dir: Path | None) -> None:
    """Refuse model files that end a process that reads them; each is tried once.

    Raises:
        UnsupportedModel: one did.
    """
    for file in files:
        path = file.path if file.graph is None else file.graph.folder / TOKENIZER
        fault = _fault(path, file.fingerprint, cache_dir, tokenizes=file.trimmed is None)
        if fault:
            raise UnsupportedModel(
                f"{path} {fault}", hint="it is damaged or made to do harm; get the model from elsewhere"
            )


@cache
def _fault(path: Path, fingerprint: str, cache_dir: Path | None, *, tokenizes: bool) -> str:
    """Return what a file does to a process, as a clause; empty if nothing.

    A trimmed drafter never ``tokenizes``: its vocabulary lacks tokens that the library would look for.
    """
    key = f"{_VERSION} {fingerprint} {[version(each) for each in _LIBRARIES]}"
    kept = blake2b(key.encode(), digest_size=12).hexdigest()
    record = cache_dir / FOLDER / f"tried-{kept}.json" if cache_dir is not None else None
    fault = read_record(record).get("fault") if record is not None else None
    if not isinstance(fault, str):
        fault = _tried(path, tokenizes=tokenizes)
        if record is not None:
            write_record(record, {"fault": fault})
    return fault


def _tried(path: Path, *, tokenizes: bool) -> str:
    # A frozen program cannot run itself as Python.
    if not sys.executable or getattr(sys, "frozen", False):
        return ""
    call = f"from {main.__module__} import main; main(tokenizes={tokenizes})"
    command = [sys.executable, "-P", "-c", call, str(path.absolute())]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"takes more than {_SECONDS:g} s to read"
    except (OSError, ValueError):  # no room for another process
        return ""
    if done.returncode >= 0:
        return ""
    name = signal.Signals(-done.returncode).name if -done.returncode in set(signal.Signals) else done.returncode
    return f"ends a process that reads it ({name})"
