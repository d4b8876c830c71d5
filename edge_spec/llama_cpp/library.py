"""llama.cpp, loaded: its functions, its log, its abort hook."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from edge_spec.errors import EdgeSpecError
from edge_spec.extras import how_to_install
from edge_spec.memory.hardware import processor

__all__ = ["SUPPORTED", "AbortFlag", "Library", "leave_out_amx", "library", "why_not_installed"]

SUPPORTED = "0.3.36"
"""The version whose C structures are known here; those that begin like it have the same."""

_ERROR = 4

_PACKAGE = "llama_cpp"

_VERSION = re.compile(r'^__version__ *= *"([^"]+)"', re.MULTILINE)


def why_not_installed() -> str | None:
    """Return why the library cannot be used, as a clause; None if it can. Nothing of it is imported.

    An extra is no promise: other packages bring versions of their own, in whose structures calls would write astray.
    """
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return "llama-cpp-python is not installed"
    found = _VERSION.search(Path(spec.origin).read_text("utf-8", "replace"))
    if found is None or f"{found[1]}.".startswith(f"{SUPPORTED}."):
        return None
    return f"llama-cpp-python {found[1]} is installed, and this edge-spec needs {SUPPORTED}"


def _bindings() -> ModuleType:
    """Import the functions alone: the package around them imports chat formats and Jinja, which takes twice as long."""
    spec = find_spec(_PACKAGE) if _PACKAGE not in sys.modules else None
    if spec is None:
        return import_module(f"{_PACKAGE}.llama_cpp")
    sys.modules[_PACKAGE] = module_from_spec(spec)
    try:
        return import_module(f"{_PACKAGE}.llama_cpp")
    finally:
        # Whoever wants the package gets the whole one.
        del sys.modules[_PACKAGE]


class Library:
    """llama.cpp, loaded.

    The library has one log for the whole process. It goes to standard error while ``verbose``; otherwise only its last
    errors are kept, to be quoted when a call fails.

    Attributes:
        c: its functions.
        version: of the package that brings it.
        features: which instructions it was built for and finds on this processor.
        build: a hash of these and of the processor: they decide how it rounds.

    Raises:
        EdgeSpecError: it is not installed, or in another version.
    """

    def __init__(self) -> None:
        missing = why_not_installed()
        if missing is not None:
            raise EdgeSpecError(missing, hint=f"run: {how_to_install('llama')}")
        # Where gdb is installed, the library would run it on this process before it aborts.
        os.putenv("GGML_NO_BACKTRACE", "1")
        self.c = _bindings()
        self.verbose = False
        self._errors: deque[str] = deque(maxlen=4)
        # The library logs in the thread that called it, so threads that load at the same time can listen separately.
        self._listeners = threading.local()
        # The library does not keep a reference to the callback.
        self._log_callback = self.c.llama_log_callback(self._log)
        self.c.llama_log_set(self._log_callback, ctypes.c_void_p(0))
        self.c.llama_backend_init()
        leave_out_amx(self.c._lib)
        features = self.c.llama_print_system_info()
        self.features: str = features.decode("ascii", "replace")
        self.build = blake2b(features + processor().encode(), digest_size=6).hexdigest()

    @cached_property
    def version(self) -> str:
        # Reading metadata imports a parser of e-mails, for which a strange file's first reader would wait.
        from importlib.metadata import version

        return version("llama-cpp-python")

    def _log(self, level: int, text: bytes, _: Any) -> None:
        if self.verbose:
            sys.stderr.write(text.decode("utf-8", "replace"))
        listener: Callable[[str], None] | None = getattr(self._listeners, "by", None)
        if listener is not None:
            listener(text.decode("utf-8", "replace"))
        if level == _ERROR and not self.verbose:
            self._errors.append(" ".join(text.decode("utf-8", "replace").split()))

    @contextmanager
    def listen(self, listener: Callable[[str], None]) -> Iterator[None]:
        """Pass on what the library logs meanwhile in this thread, which it does in parts of lines."""
        self._listeners.by = listener
        try:
            yield
        finally:
            self._listeners.by = None

    def complaint(self) -> str:
        """Return the errors that the library has logged since the last call, in one line."""
        text = "; ".join(dict.fromkeys(line for line in self._errors if line))
        self._errors.clear()
        return text or "it gave no reason"


@cache
def _strlen() -> int:
    """Return the address of ``strlen``."""
    libc: Any = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
    return int(ctypes.cast(libc.strlen, ctypes.c_void_p).value or 0)


@cache
def library() -> Library:
    """llama.cpp, loaded at the first call; importing edge_spec does not load it."""
    return Library()


class AbortFlag:
    """A flag that llama.cpp reads between two operations of its graph, at no cost.

    A Python callback would take the interpreter lock some hundred times per token. The C library's ``strlen`` has the
    right signature, a function of one pointer, and the right result: 0 for an empty string, 1 for a string of one
    character.

    Attributes:
        is_raised: whether it is raised, seen by llama.cpp or not.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(2)
        self._is_unseen = False
        self.is_raised = False

    def install(self, params: Any) -> None:
        """Let a context with these parameters read the flag; the flag must outlive the context."""
        params.abort_callback = type(params.abort_callback)(_strlen())
        params.abort_callback_data = ctypes.addressof(self._text)

    def raise_(self) -> None:
        self.is_raised = True
        if not self._is_unseen:
            self._text[0] = b"\x01"

    def lower(self) -> None:
        self.is_raised = False
        self._text[0] = b"\x00"

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Hide from llama.cpp that the flag is raised meanwhile in another thread."""
        self._is_unseen = True
        try:
            yield
        finally:
            self._is_unseen = False


_CPU = 0
"""``GGML_BACKEND_DEVICE_TYPE_CPU``."""


def leave_out_amx(lib: Any) -> bool:
    """Remove AMX from the layouts that llama.cpp may choose for weights; returns whether it was among them.

    The library returns its own array of buffer types, terminated by a null pointer, and reads the same array whenever
    it loads a model.

    Args:
        lib: the ctypes library of llama.cpp; functions of ggml are found through it.
    """
    try:
        by_type, registry_of, address_of, name_of = (
            lib.ggml_backend_dev_by_type,
            lib.ggml_backend_dev_backend_reg,
            lib.ggml_backend_reg_get_proc_address,
            lib.ggml_backend_buft_name,
        )
    except AttributeError:
        return False
    by_type.argtypes, by_type.restype = [ctypes.c_int], ctypes.c_void_p
    registry_of.argtypes, registry_of.restype = [ctypes.c_void_p], ctypes.c_void_p
    address_of.argtypes, address_of.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_void_p
    name_of.argtypes, name_of.restype = [ctypes.c_void_p], ctypes.c_char_p
    cpu = by_type(_CPU)
    address = address_of(registry_of(cpu), b"ggml_backend_dev_get_extra_bufts") if cpu else None
    if not address:
        return False
    layouts = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(cpu)
    found = 0
    place = 0
    while layouts and layouts[place]:
        if name_of(layouts[place]) == b"AMX":
            found += 1
        else:
            layouts[place - found] = layouts[place]
        place += 1
    for gone in range(place - found, place):
        layouts[gone] = None
    return found > 0
