"""One ONNX Runtime session over a transcription, with its arrays bound in place.

The library is named only here; what it throws becomes ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.backends.base import Logits
from edge_spec.backends.onnx.caches import Cache, Place
from edge_spec.errors import BackendError, Cancelled, Closed
from edge_spec.models.transcribe import Transcription

__all__ = ["Session", "runtime_version"]

_FATAL = 4


def runtime_version() -> str:
    """Of ONNX Runtime."""
    import onnxruntime

    return str(onnxruntime.__version__)


class Session:
    """A session and the arrays that go in and out. A run copies nothing and binds once per shape.

    Args:
        cache: its memory is bound to the graph.
        most_tokens, most_rows: the most tokens, and rows of logits, of one run.

    Attributes:
        ids: int64 ``[most_tokens]``, to be filled before a run.

    Raises:
        BackendError: ONNX Runtime cannot load the graph; the error quotes its reason.
    """

    def __init__(
        self, model: Transcription, cache: Cache, *, most_tokens: int, most_rows: int,
        n_threads: int, spin: bool, trees: bool, f16: bool = False,
    ) -> None:  # fmt: skip
        import onnxruntime

        self._ort: Any = onnxruntime
        path = model.graph(trees=trees, f16=f16)
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(path), _options(model, n_threads, spin), providers=["CPUExecutionProvider"]
            )
        except BackendError:
            raise
        except Exception as error:
            raise BackendError(
                f"ONNX Runtime {runtime_version()} cannot load {path}: {_first_line(error)}",
                hint="delete that folder to have it made anew, or use --engine llama",
            ) from error
        self._run_options = onnxruntime.RunOptions()
        # A prompt needs more memory than a round: give it back at once.
        self._long_run_options = onnxruntime.RunOptions()
        self._long_run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        for options in (self._run_options, self._long_run_options):
            # Asked for in every run, and an exception thrown and caught where it is not set: a tenth of a millisecond.
            options.add_run_config_entry("gpu_graph_id", "-1")
        self._cache = cache
        self.ids = np.zeros(most_tokens, np.int64)
        self._rows = np.zeros(most_rows, np.int64)
        self._logits = np.zeros((most_rows, model.n_vocab), np.float32)
        self._inputs = {name: self._value(array) for name, array in cache.inputs.items()}
        self._outputs = {name: self._value(array) for name, array in cache.outputs.items()}
        self._bindings: dict[tuple[int, int], Any] = {}

    def run(self, place: Place, rows: range) -> Logits:
        """Compute ``ids[:place.n_run]``.

        Args:
            rows: the tokens whose logits are wanted.

        Returns:
            Logits ``[rows, n_vocab]``, good until the next run.

        Raises:
            Cancelled: ``cancel`` was called. BackendError: ONNX Runtime failed.
        """
        if self._session is None:
            raise Closed("the model")
        self._rows[: len(rows)] = rows
        binding = self._binding(place.n_run, len(rows))
        for name, array in self._cache.place(place):
            binding.bind_ortvalue_input(name, self._value(array))
        options = self._run_options if place.n_run <= len(self._rows) else self._long_run_options
        try:
            self._session.run_with_iobinding(binding, options)
        except Exception as error:
            if self._run_options.terminate:
                self.resume()
                raise Cancelled from None
            raise BackendError(f"ONNX Runtime failed: {_first_line(error)}") from error
        result = self._logits[: len(rows)]
        result.flags.writeable = False
        return result

    def _binding(self, n: int, n_rows: int) -> Any:
        """Everything bound for runs of this shape."""
        binding = self._bindings.get((n, n_rows))
        if binding is not None:
            return binding
        binding = self._session.io_binding()
        binding.bind_ortvalue_input("ids", self._value(self.ids[:n].reshape(1, n)))
        binding.bind_ortvalue_input("rows", self._value(self._rows[:n_rows]))
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            binding.bind_ortvalue_output(name, value)
        logits = self._logits[:n_rows]
        binding.bind_ortvalue_output("logits", self._value(logits.reshape(1, *logits.shape)))
        if n <= len(self._rows):
            self._bindings[n, n_rows] = binding
        return binding

    def _value(self, array: npt.NDArray[Any]) -> Any:
        """An array as the library sees it: the same memory."""
        return self._ort.OrtValue.ortvalue_from_numpy(array)

    def cancel(self) -> None:
        """Make a run that is under way, or else the next one, raise ``Cancelled``."""
        self._run_options.terminate = self._long_run_options.terminate = True

    def resume(self) -> None:
        """Forget a ``cancel``."""
        self._run_options.terminate = self._long_run_options.terminate = False

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        self._session = None
        for bound in (self._bindings, self._inputs, self._outputs, self._cache.inputs, self._cache.outputs):
            bound.clear()
        self._logits = self._logits[:0]


def _options(model: Transcription, n_threads: int, spin: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    # Whoever computes between two runs of this session needs the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Else weights are copied into the arena, which never gives them back.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    if model.form == "rows":
        from edge_spec.kernels import library_path

        options.register_custom_ops_library(str(library_path()))
    return options


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
