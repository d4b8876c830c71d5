"""One ONNX Runtime session over a transcription, with all its arrays bound in place.

The library is named only here; what it throws becomes ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.backends.base import Logits
from edge_spec.errors import BackendError, Cancelled, Closed
from edge_spec.models.transcribe import Transcription

__all__ = ["Session", "runtime_version"]

_HIDDEN = np.float32(-1e9)
"""Added to a score it leaves a weight of exactly 0."""

_FATAL = 4


def runtime_version() -> str:
    """Of ONNX Runtime."""
    import onnxruntime

    return str(onnxruntime.__version__)


class Session:
    """A session, its KV cache and the arrays that go in and out. A run copies nothing and binds once per shape.

    Args:
        n_cells: length of the cache.
        most_tokens, most_rows: the most tokens, and rows of logits, of one run.

    Attributes:
        cache: float32 ``[2 * n_layers, 1, n_head_kv, n_cells, head_dim]``, keys and values by turns. The session
            reads it and writes to it.
        ids, positions: int64 ``[most_tokens]``, to be filled before a run.

    Raises:
        BackendError: ONNX Runtime cannot load the graph; the error quotes its reason.
    """

    def __init__(
        self, model: Transcription, *, n_cells: int, most_tokens: int, most_rows: int,
        n_threads: int, spin: bool, trees: bool,
    ) -> None:  # fmt: skip
        import onnxruntime

        self._ort: Any = onnxruntime
        self._trees = trees
        options = _options(model, n_threads, spin)
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(model.graph(trees=trees)), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise BackendError(
                f"ONNX Runtime {runtime_version()} cannot load {model.graph(trees=trees)}: {_first_line(error)}",
                hint="delete that folder to have it made anew, or use --engine llama",
            ) from error
        self._run_options = onnxruntime.RunOptions()
        # A prompt needs more memory than a round: give it back at once.
        self._long_run_options = onnxruntime.RunOptions()
        self._long_run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self.cache = np.zeros((2 * model.n_layers, 1, model.n_head_kv, n_cells, model.head_dim), np.float32)
        self.ids = np.zeros(most_tokens, np.int64)
        self.positions = np.zeros(most_tokens, np.int64)
        self._rows = np.zeros(most_rows, np.int64)
        self._last_cell = np.zeros(1, np.int32)
        self._n_cells = np.zeros((), np.int32)
        self._logits = np.zeros((most_rows, model.n_vocab), np.float32)
        self._bias = np.zeros(most_tokens * n_cells if trees else 0, np.float32)
        self._bias_dirty = 0
        self._cache_values = [self._value(layer) for layer in self.cache]
        angles = np.arange(n_cells)[:, None] * model.frequencies
        self._fixed = {
            "last_cell": self._value(self._last_cell),
            "n_cells": self._value(self._n_cells),
            "cos": self._value(np.cos(angles).astype(np.float32)),
            "sin": self._value(np.sin(angles).astype(np.float32)),
        }
        self._bindings: dict[tuple[int, int], Any] = {}

    def run(
        self, n: int, n_past: int, rows: range, hidden: npt.NDArray[np.bool_] | None = None
    ) -> Logits:
        """Compute ``ids[:n]`` at ``positions[:n]`` into the cells from ``n_past`` on.

        Each token sees all cells before its own and its own, without those that are hidden from it.

        Args:
            rows: the tokens whose logits are wanted.
            hidden: ``[tokens, cells]``, of the first tokens and the last cells; needs a session for trees.

        Returns:
            Logits ``[rows, n_vocab]``, good until the next run.

        Raises:
            Cancelled: ``cancel`` was called. BackendError: ONNX Runtime failed.
        """
        if self._session is None:
            raise Closed("the model")
        self._rows[: len(rows)] = rows
        self._last_cell[0] = n_past + n - 1
        self._n_cells[()] = n_past + n
        binding = self._binding(n, len(rows))
        if self._trees:
            self._bind_bias(binding, n, n_past + n, hidden)
        options = self._run_options if n <= len(self._rows) else self._long_run_options
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
        for name, value in self._fixed.items():
            binding.bind_ortvalue_input(name, value)
        if self._trees:
            binding.bind_ortvalue_input("positions", self._value(self.positions[:n].reshape(1, n)))
        for place, value in enumerate(self._cache_values):
            name = f"{('key', 'value')[place % 2]}_{place // 2}"
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"new_{name}", value)
        logits = self._logits[:n_rows]
        binding.bind_ortvalue_output("logits", self._value(logits.reshape(1, *logits.shape)))
        if n <= len(self._rows):
            self._bindings[n, n_rows] = binding
        return binding

    def _bind_bias(self, binding: Any, n: int, n_cells: int, hidden: npt.NDArray[np.bool_] | None) -> None:
        self._bias[: self._bias_dirty] = 0
        self._bias_dirty = 0
        bias = self._bias[: n * n_cells].reshape(1, 1, n, n_cells)
        if hidden is not None:
            tokens, cells = hidden.shape
            bias[0, 0, :tokens, n_cells - (n - tokens) - cells : n_cells - (n - tokens)][hidden] = _HIDDEN
            self._bias_dirty = n * n_cells
        binding.bind_ortvalue_input("bias", self._value(bias))

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
        self._bindings.clear()
        self._cache_values.clear()
        self._fixed.clear()
        self.cache = self.cache[:0]
        self._logits, self._bias = self._logits[:0], self._bias[:0]


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
