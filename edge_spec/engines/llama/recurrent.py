"""Recurrent models, and hybrids of recurrent and attention layers, on llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from edge_spec.engines.llama.pool import LlamaPath, LlamaPool
from edge_spec.engines.places import Places
from edge_spec.engines.pool import Part
from edge_spec.errors import BackendError
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import Path
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["RecurrentPath", "RecurrentPool"]

_TEXT, _HELD = 0, 1
"""Sequence ids: the text, and what ``hold`` keeps of it."""

_IN_SEQUENCE = "held"
"""In place of a copy that lies in the library's sequence ``_HELD``."""


class RecurrentPool(LlamaPool):
    """A context whose layers, or some of them, have a state that goes back to ``Places`` only. It holds one text."""

    def path(self, like: Path | None = None) -> RecurrentPath:
        return RecurrentPath(self)

    def _compute(self, parts: Sequence[Part[LlamaPath]], *, is_decode: bool) -> Logits:
        if not is_decode:
            return super()._compute(parts, is_decode=False)
        # Stopped in the middle, some layers would have seen the tokens and others not. A few rows do not take long.
        with self.context.abort.unseen():
            return super()._compute(parts, is_decode=True)

    def _run(self, parts: Sequence[Part[LlamaPath]], n: int, *, logits: bool) -> int:
        (part,) = parts
        path = part.path
        assert isinstance(path, RecurrentPath)
        path.go_to(part.start)
        path.places.damaged()
        code = super()._run(parts, n, logits=logits)
        if code == 0:
            path.places.computed(part.start + n, n)
        return code

    def _unpad(self, sequence: int, end: int) -> None:
        """Padding goes together with what is rejected."""

    def _mend(self) -> None:
        """So does what an interrupted run has left."""

    def _drop(self, path: LlamaPath, cells: Sequence[int], n: int) -> None:
        del path.cells[n:]
        self._end = self._n_held = n

    def resize(self, n_cells: int) -> None:
        if n_cells > self.n_cells:
            raise MemoryError("a recurrent model has as many cells as one text needs")


class RecurrentPath(LlamaPath):
    """See ``Path``.

    For some architectures llama.cpp keeps snapshots of the state before the last rows of a decode. It goes back to one
    of them once and then refuses until the next decode; and where the decode had fewer rows than there are snapshots,
    it goes back to an older, wrong one without a word. So nothing is taken back before the state is used again: then
    padding, rejected drafts and whatever else goes in one step.

    Targets also copy the state where a prompt begins to be read and where it ends: an answer can be written again, or
    left out, without reading the whole text. Drafters hold theirs at the text that is certain.

    Attributes:
        places: to which it can go back.
    """

    def __init__(self, pool: LlamaPool) -> None:
        super().__init__(pool)
        self._empty()

    def _empty(self) -> None:
        context = self.pool.context
        self.places = Places(context.c.llama_n_rs_seq(context.handle))
        self._begin = 0
        self._reads_on = False

    # --- computing

    def reads(self) -> None:
        if self.settings.exact and not self._reads_on:
            # Here a prompt begins; one that is read in several calls goes on where the last one has ended.
            self._begin = self._n_past
            self._copy()
            self._reads_on = True

    def read(self, n: int) -> None:
        super().read(n)
        if self.settings.exact:
            self._copy()

    def part_of(self, tree: Tree) -> Part[RecurrentPath]:
        self._reads_on = False
        return super().part_of(tree)

    # --- going back

    def _gone_back(self, n_past: int) -> int:
        self._reads_on = self._reads_on and n_past >= self._n_past
        return n_past

    def drop_pending(self) -> None:
        self.pending = EMPTY
        self._n_past = self.places.nearest(self._n_past)
        if self._n_past == 0 and self.has_sequence:
            self.pool.context.clear()
            self._empty()
        self.pool.drop(self, self._n_past)

    def forget(self) -> None:
        super().forget()
        self._empty()

    def hold(self) -> None:
        self.require_open()
        if not self.pool.settings.holds:
            return
        self.drop_pending()
        if self._n_past:
            self.go_to(self._n_past)
            context = self.pool.context
            context.remove(_HELD, -1)
            context.copy(_TEXT, _HELD, -1, -1)
            self.places.copies = {self._n_past: _IN_SEQUENCE}

    def _copy(self) -> None:
        """Copy the state of the text as it is, in place of all copies but that of where the prompt begins."""
        copies, n = self.places.copies, self._n_past
        self.places.copies = {place: copy for place, copy in copies.items() if place == self._begin}
        if n == 0 or n in self.places.copies:
            return
        self.go_to(n)
        c, handle = self.pool.context.c, self.pool.context.handle
        size = c.llama_state_seq_get_size_ext(handle, _TEXT, self._states)
        copy = (ctypes.c_uint8 * size)()
        if c.llama_state_seq_get_data_ext(handle, copy, size, _TEXT, self._states) == size:
            self.places.copies[n] = copy

    @property
    def _states(self) -> int:
        """The flag for states without cells."""
        return int(self.pool.context.c.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)

    def go_to(self, n: int) -> None:
        """Make the library's state that of ``n`` tokens, one of the places."""
        if n == self.places.end:
            return
        if not self._has_gone_to(n):
            self.rollback(0)
            name = self.pool.context.weights.path.name
            raise BackendError(f"llama.cpp did not bring {name} back to {n} tokens")
        self.places.moved(n)

    def _has_gone_to(self, n: int) -> bool:
        context = self.pool.context
        if n == 0:
            context.clear()
            return True
        if self.places.is_near(n):
            return context.remove(_TEXT, n)
        copy = self.places.copies[n]
        if copy is _IN_SEQUENCE:
            gone = context.remove(_TEXT, -1)
            context.copy(_HELD, _TEXT, -1, -1)
            return gone
        # The states first: the library takes no cells away from a sequence whose states do not go back as far.
        read = context.c.llama_state_seq_set_data_ext(context.handle, copy, len(copy), _TEXT, self._states)
        return bool(read and context.remove(_TEXT, n))

    # --- saving

    def _write(self) -> bytes:
        self.go_to(self._n_past)
        return super()._write()

    def _read(self, body: bytes, n_past: int) -> None:
        super()._read(body, n_past)
        self.places.moved(n_past)
