"""A context of llama.cpp: its cells, its batch, and what is computed with them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from edge_spec.engines.llama.architectures import CANNOT_SHIFT
from edge_spec.engines.llama.batch import Batch
from edge_spec.engines.llama.settings import LlamaSettings, context_parameters
from edge_spec.errors import BackendError, Closed, Sentence, StateError
from edge_spec.llama_cpp.library import AbortFlag, library
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.speculation.language_model import Logits

__all__ = ["ABORTED", "NO_SLOT", "LibraryContext"]

NO_SLOT, ABORTED = 1, 2
"""Codes of the library's decode."""

_PARTS, _LENGTH = b"es-parts", struct.Struct("<Q")
"""What cells in several parts begin with, and how many bytes a part has. What is in one part is the library's own."""


class LibraryContext:
    """A context over ``weights``. Who uses it knows which sequence ids it gave to what.

    Attributes:
        c: the library's functions.
        weights: what it computes with.
        batch: what it computes next.
        abort: stops it.

    Raises:
        BackendError: llama.cpp cannot make the context; the error quotes its reason.
    """

    def __init__(self, weights: LlamaWeights, settings: LlamaSettings) -> None:
        self.c = library().c
        self.weights = weights
        self.abort = AbortFlag()
        self._settings = settings
        self._views: dict[tuple[int, int], Logits] = {}
        self._handle: Any = None
        self.open(settings.n_cells)
        self.batch = Batch(self.c, settings.prefill_chunk, self.n_sequences)

    def open(self, n_cells: int) -> None:
        """Have at least so many cells, all of them empty."""
        self.close()
        lib, settings = library(), self._settings
        params = context_parameters(settings)
        params.n_ctx = n_cells
        self.n_sequences: int = params.n_seq_max
        self.abort.install(params)
        lib.complaint()
        self._handle = self.c.llama_init_from_model(self.weights.handle, params)
        if not self._handle:
            raise BackendError(
                f"llama.cpp cannot make a context of {settings.n_ctx} tokens for {self.weights.path.name}: "
                f"{lib.complaint()}",
                hint=Sentence("try a smaller {n_ctx}, or another {kv_k}"),
            )
        self.memory = self.c.llama_get_memory(self._handle)

    @property
    def handle(self) -> Any:
        """The library's context, while it is open."""
        if self._handle is None:
            raise Closed(f"the model {self.weights.path.name}")
        return self._handle

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return self._handle is not None

    @property
    def n_cells(self) -> int:
        """How many cells there are."""
        return int(self.c.llama_n_ctx(self.handle))

    @property
    def n_window(self) -> int:
        """How many tokens back the layers with a window see; 0 if there are none."""
        return int(self.c.llama_model_n_swa(self.weights.handle))

    @property
    def can_shift(self) -> bool:
        """Whether the library can move keys to other positions.

        The library's own answer leaves out five cases: it ends the process where keys are BF16, where rotary embeddings
        cover only a part of quantized keys and where no layer has any, it turns keys that know no positions or know
        them otherwise, and it lets keys grow where YaRN has scaled them. Where layers have windows the text is read
        again, as older versions did: what saved conversations go on with stays the same.
        """
        weights = self.weights
        if weights.architecture in CANNOT_SHIFT or not weights.has_rotary:
            return False
        if self._settings.kv_k == "bf16":
            return False
        is_quantized = self._settings.kv_k not in ("f32", "f16")
        turns_part = weights.n_rotary != weights.head_dim_k
        if self.n_window > 0 or weights.rope_scaling == "yarn" or (is_quantized and turns_part):
            return False
        return bool(self.c.llama_memory_can_shift(self.memory))

    def run(self, n: int, *, logits: bool) -> int:
        """Run the batch's first ``n`` tokens; the library's code, 0 for success."""
        return int(self.c.llama_decode(self.handle, self.batch.taken(n, logits=logits)))

    def rows(self, n: int) -> Logits:
        """Return the first ``n`` rows of the library's output, in place."""
        address = ctypes.addressof(self.c.llama_get_logits(self.handle).contents)
        rows = self._views.get((address, n))
        if rows is None:
            n_vocab = self.weights.n_vocab
            buffer = (ctypes.c_float * (n * n_vocab)).from_address(address)
            rows = np.ctypeslib.as_array(buffer).reshape(n, n_vocab)
            rows.flags.writeable = False
            self._views[address, n] = rows
        return rows

    def clear(self) -> None:
        """Empty all cells."""
        self.c.llama_memory_clear(self.memory, False)

    def remove(self, sequence: int, first: int, last: int = -1) -> bool:
        """Take positions away from a sequence; cells of no other one are free then."""
        return bool(self.c.llama_memory_seq_rm(self.memory, sequence, first, last))

    def unpad(self, sequence: int, end: int) -> None:
        """Remove the cells of padding, which come after position ``end`` of a sequence.

        Raises:
            BackendError: the library did not.
        """
        if not self.remove(sequence, end):
            raise BackendError("llama.cpp did not remove padding from its cache")

    def copy(self, source: int, target: int, first: int, last: int) -> None:
        """Let positions of one sequence be those of another one, too."""
        self.c.llama_memory_seq_cp(self.memory, source, target, first, last)

    def keep_only(self, sequence: int) -> None:
        """Take all cells away from the other sequences."""
        self.c.llama_memory_seq_keep(self.memory, sequence)

    def take_out(self, sequence: int, first: int, last: int) -> None:
        """Remove positions in the middle of a sequence and move those after them up."""
        self.remove(sequence, first, last)
        self.c.llama_memory_seq_add(self.memory, sequence, last, -1, first - last)

    def holds(self, sequence: int, n: int) -> bool:
        """Return whether the last position of a sequence is that of a text of ``n`` tokens."""
        return bool(self.c.llama_memory_seq_pos_max(self.memory, sequence) == n - 1)

    @property
    def spare(self) -> int | None:
        """The last sequence id, through which cells are copied; None for recurrent models, which have a state by id."""
        return None if self._settings.is_recurrent else self.n_sequences - 1

    def write(self, sequence: int, first: int, last: int) -> bytes:
        """Return the cells of a sequence at some positions, the same bytes whichever sequence it is.

        The library leaves out cells that the token after them does not see. What is written in parts of half a window
        has all of them: it comes to lie where a text that was never written has it, and can go back anywhere.
        """
        if self.spare is None:
            return self._written(sequence)
        bodies = [self._copied(sequence, *part) for part in self._parts(first, last)]
        if len(bodies) == 1:
            return bodies[0]
        return _PARTS + b"".join(piece for body in bodies for piece in (_LENGTH.pack(len(body)), body))

    def _parts(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield where parts begin and end: half a window, as some look to both sides. None crosses a multiple of the
        window, since attention in chunks sees its own chunk only."""
        window = self.n_window
        while True:
            end = min(last, first + max(1, window // 2), first - first % window + window) if window else last
            yield first, end
            if end >= last:
                return
            first = end

    def _copied(self, sequence: int, first: int, last: int) -> bytes:
        assert self.spare is not None
        self.copy(sequence, self.spare, first, last)
        try:
            return self._written(self.spare)
        finally:
            self.remove(self.spare, -1)

    def _written(self, sequence: int) -> bytes:
        size = self.c.llama_state_seq_get_size(self.handle, sequence)
        buffer = (ctypes.c_uint8 * size)()
        n = self.c.llama_state_seq_get_data(self.handle, buffer, size, sequence)
        if n == 0:
            raise BackendError("llama.cpp did not save the cache")
        return bytes(memoryview(buffer)[:n])

    def read(self, sequence: int, body: bytes) -> None:
        """Give cells that ``write`` returned to a sequence, after those that it has.

        Raises:
            StateError: they are damaged; what there is of them is in the cells.
        """
        for part in _parts_of(body):
            if self.spare is None:
                self._read(sequence, part)
                continue
            try:
                self._read(self.spare, part)
                self.copy(self.spare, sequence, -1, -1)
            finally:
                self.remove(self.spare, -1)

    def _read(self, sequence: int, body: memoryview) -> None:
        buffer = (ctypes.c_uint8 * len(body)).from_buffer_copy(body)
        if self.c.llama_state_seq_set_data(self.handle, buffer, len(body), sequence) == 0:
            raise StateError("llama.cpp does not accept the saved state", hint="read the text again instead")

    def require_whole(self, body: bytes, n: int) -> None:
        """Refuse cells of a text of ``n`` tokens that were written without parts, as by older versions, where the
        attention would miss those that were left out, or group its sums otherwise.

        Raises:
            StateError: they are refused.
        """
        needs_all = self.spare is not None or self._settings.sums_by_place
        if needs_all and 0 < self.n_window < 2 * n and not body.startswith(_PARTS):
            raise StateError(
                "the saved state lacks what lies outside of the model's windows", hint="read the text again instead"
            )

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        handle, self._handle = self._handle, None
        self._views.clear()
        if handle:
            self.c.llama_free(handle)


def _parts_of(body: bytes) -> Iterator[memoryview]:
    """Yield the parts of what ``write`` returned; the last one is short where it is damaged."""
    view = memoryview(body)
    if not body.startswith(_PARTS):
        yield view
        return
    place = len(_PARTS)
    while place < len(view):
        if place + _LENGTH.size > len(view):
            raise StateError("the saved state is damaged", hint="read the text again instead")
        (n,) = _LENGTH.unpack_from(view, place)
        place += _LENGTH.size + n
        yield view[place - n : place]
