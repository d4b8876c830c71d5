"""A session of ONNX Runtime: loaded, run and stopped.

The library is named only here, and its exceptions become edge-spec's errors here.
"""

from __future__ import annotations

import os
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from edge_spec.errors import BackendError, Cancelled, Closed, EdgeSpecError, UnsupportedModel

__all__ = ["Runner", "is_loaded", "runtime_version", "value_of"]

_FATAL = 4


@cache
def library() -> Any:
    """ONNX Runtime, loaded at the first call."""
    # Otherwise it writes an identity of this device into the user's cache folder when it is loaded.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def is_loaded() -> bool:
    """Return whether it is loaded, by whomever."""
    return "onnxruntime" in sys.modules


def runtime_version() -> str:
    """Return the version of ONNX Runtime."""
    return str(library().__version__)


def value_of(array: npt.NDArray[Any]) -> Any:
    """Return an array as the library sees it: the same memory."""
    return library().OrtValue.ortvalue_from_numpy(array)


class Runner:
    """A graph, loaded.

    Attributes:
        n_vocab: columns of its logits.

    Args:
        graph: a file, or what would be in it.
        operators: a library with operators of our own; None for none.
        held_experts: how many experts of each layer they keep in memory; 0 for all.
        forgets_experts: the others leave the system's cache of files, too.
        external: the graph is not ours: if it cannot be loaded the file is at fault, and inputs change shape from run
            to run.
        hint: what to do if it cannot be loaded.

    Raises:
        BackendError: ONNX Runtime cannot load the graph; the error quotes its reason.
        UnsupportedModel: the same for an external one.
    """

    n_vocab: int

    def __init__(
        self,
        graph: Path | bytes,
        *,
        n_threads: int,
        spin: bool,
        hint: str,
        operators: Path | None = None,
        held_experts: int = 0,
        forgets_experts: bool = False,
        external: bool = False,
    ) -> None:
        self._loaded_graph = graph
        self._load = partial(_loaded, hint=hint, external=external)
        self._options = partial(_options, n_threads, spin, operators, held_experts, forgets_experts, external)
        self._session: Any = self._load(graph, self._options())
        self._run_options = library().RunOptions()
        # A prompt needs more memory than a round: it is given back at once.
        self._long_run_options = library().RunOptions()
        self._long_run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        for options in (self._run_options, self._long_run_options):
            # The library looks for this entry in every run; where it is missing, it throws and catches an exception,
            # which takes a tenth of a millisecond.
            options.add_run_config_entry("gpu_graph_id", "-1")

    def extend(self, graph: Path | bytes, tail: bytes) -> None:
        """Load a graph instead, with more nodes and outputs. Earlier bindings are invalid afterwards.

        Args:
            graph: the same, except for what further nodes may use.
            tail: as ``Graph.serialize`` writes them; they may use what the graph computes.

        Raises:
            BackendError: ONNX Runtime cannot load it; the graph is loaded again as it was. Closed: it is closed.
        """
        if self._session is None:
            raise Closed("the model")
        self._session = None
        try:
            self._session = self._load(graph, self._options(), tail=tail)
        finally:
            self._session = self._session or self._load(self._loaded_graph, self._options())

    def binding(self) -> Any:
        """Return where inputs and outputs of a run are bound to memory."""
        if self._session is None:
            raise Closed("the model")
        return self._session.io_binding()

    def compute(self, binding: Any, *, long: bool) -> None:
        """Compute.

        Args:
            long: give memory back afterwards.

        Raises:
            Cancelled: ``cancel`` was called. BackendError: ONNX Runtime failed. Closed.
        """
        if self._session is None:
            raise Closed("the model")
        try:
            self._session.run_with_iobinding(binding, self._long_run_options if long else self._run_options)
        except Exception as error:
            if self._run_options.terminate:
                self.resume()
                raise Cancelled from None
            raise BackendError(f"ONNX Runtime failed: {_first_line(error)}") from error

    def cancel(self) -> None:
        """Make a run in progress, or else the next one, raise ``Cancelled``."""
        self._run_options.terminate = self._long_run_options.terminate = True

    def resume(self) -> None:
        """Forget a ``cancel``."""
        self._run_options.terminate = self._long_run_options.terminate = False

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        self._session = None


def _loaded(graph: Path | bytes, options: Any, *, hint: str, external: bool, tail: bytes = b"") -> Any:
    source: str | bytes = graph if isinstance(graph, bytes) else str(graph)
    kind = UnsupportedModel if external else BackendError
    try:
        if isinstance(source, str):
            source.encode()
        if isinstance(graph, Path) and tail:
            # Protocol buffers merge where they are written one after the other: lists are joined.
            source = graph.read_bytes() + tail
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(graph.parent))
        return library().InferenceSession(
            source,
            options,
            providers=["CPUExecutionProvider"],
            # Otherwise it tries again after some failures, and says so on standard output.
            enable_fallback=0,
        )
    except EdgeSpecError:
        raise
    except UnicodeEncodeError:
        raise kind(
            f"{Path(os.fsdecode(source))} has a name that is not UTF-8, and ONNX Runtime opens no such files", hint=hint
        ) from None
    except Exception as error:
        what = graph if isinstance(graph, Path) else "a graph"
        raise kind(f"ONNX Runtime {runtime_version()} cannot load {what}: {_first_line(error)}", hint=hint) from error


def _options(
    n_threads: int, spin: bool, operators: Path | None, held_experts: int, forgets_experts: bool, external: bool
) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    # The library keeps a plan for every shape that it has seen; those of a growing text never come back.
    options.enable_mem_pattern = not external
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    # Between two runs of this session, other sessions need the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Otherwise weights are copied into the arena, which never gives them back.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    if held_experts:
        options.add_session_config_entry("edge_spec.held_experts", str(held_experts))
    if forgets_experts:
        options.add_session_config_entry("edge_spec.forgets_experts", "1")
    if operators is not None:
        options.register_custom_ops_library(str(operators))
    return options


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
