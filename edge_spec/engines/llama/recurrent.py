"""Recurrent models, and hybrids of recurrent and attention layers, on llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from edge_spec.engines.llama.context import LlamaModel
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.places import Places
from edge_spec.errors import BackendError
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["RecurrentModel"]

_TEXT, _HELD = 0, 1
"""Sequence ids: the text, and what ``hold`` keeps of it."""

_IN_SEQUENCE = "held"
"""In place of a copy that lies in the library's sequence ``_HELD``."""


class RecurrentModel(LlamaModel):
    """A context whose layers, or some of them, have a state that goes back to ``Places`` only.

    For some architectures llama.cpp keeps snapshots of the state before the last rows of a decode. It goes back to one
    of them once and then refuses until the next decode; and where the decode had fewer rows than there are snapshots,
    it goes back to an older, wrong one without a word. So nothing is taken back before the state is used again: then
    padding, rejected drafts and whatever else goes in one step.

    Targets also copy the state where a prompt begins to be read and where it ends: an answer can be written again, or
    left out, without reading the whole text. Drafters hold theirs at the text that is certain.
    """

    def __init__(
        self, weights: LlamaWeights, settings: LlamaSettings, *, profile: NumericsProfile, capabilities: Capabilities
    ) -> None:
        super().__init__(weights, settings, profile=profile, capabilities=capabilities)
        self._holds = settings.holds
        self._places = Places(self.context.c.llama_n_rs_seq(self.context.handle))
        self._begin = 0
        self._reads_on = False

    # --- computing

    def prefill(self, tokens: Sequence[int]) -> None:
        self._open()
        self._require_room(len(tokens))
        self._drop_pending()
        if not self.settings.exact:
            super().prefill(tokens)
            return
        if not self._reads_on:
            # Here a prompt begins; one that is read in several calls goes on where the last one has ended.
            self._begin = self._n_past
            self._copy()
        self._reads_on = True
        for start in range(0, len(tokens), self.settings.prefill_chunk):
            super().prefill(tokens[start : start + self.settings.prefill_chunk])
            self._copy()

    def decode(self, tree: Tree) -> Logits:
        if not tree.is_sequence:
            raise ValueError("a recurrent model takes sequences, not trees")
        self._reads_on = False
        # Stopped in the middle, some layers would have seen the tokens and others not. A few rows do not take long.
        with self.context.abort.unseen():
            return super().decode(tree)

    def _run(self, n: int, *, logits: bool) -> int:
        start = self._n_past + len(self._pending)
        self._go_to(start)
        self._places.damaged()
        code = super()._run(n, logits=logits)
        if code == 0:
            self._places.computed(start + n, n)
        return code

    def _unpad(self, sequence: int, end: int) -> None:
        """Padding goes together with what is rejected."""

    # --- going back

    def rollback(self, n_past: int) -> None:
        self._reads_on = self._reads_on and n_past >= self._n_past
        super().rollback(n_past)

    def _cut(self, chosen: int, end: int) -> None:
        self._pending = EMPTY
        self._n_past = self._places.nearest(end)

    def _clear(self) -> None:
        super()._clear()
        self._reads_on = False
        self._places = Places(self._places.n_snapshots)

    def hold(self) -> None:
        self._open()
        if self._holds:
            self._drop_pending()
            self._go_to(self._n_past)
            self.context.remove(_HELD, -1)
            self.context.copy(_TEXT, _HELD, -1, -1)
            self._places.copies = {self._n_past: _IN_SEQUENCE}

    def _copy(self) -> None:
        """Copy the state of the text as it is, in place of all copies but that of where the prompt begins."""
        copies, n = self._places.copies, self._n_past
        self._places.copies = {place: copy for place, copy in copies.items() if place == self._begin}
        if n == 0 or n in self._places.copies:
            return
        self._go_to(n)
        c, handle = self.context.c, self.context.handle
        size = c.llama_state_seq_get_size_ext(handle, _TEXT, self._states)
        copy = (ctypes.c_uint8 * size)()
        if c.llama_state_seq_get_data_ext(handle, copy, size, _TEXT, self._states) == size:
            self._places.copies[n] = copy

    @property
    def _states(self) -> int:
        """The flag for states without cells."""
        return int(self.context.c.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)

    def _go_to(self, n: int) -> None:
        """Make the library's state that of ``n`` tokens, one of the places."""
        places = self._places
        if n == places.end:
            return
        if not self._has_gone_to(n):
            self._clear()
            raise BackendError(f"llama.cpp did not bring {self.context.weights.path.name} back to {n} tokens")
        places.moved(n)

    def _has_gone_to(self, n: int) -> bool:
        context = self.context
        if n == 0:
            context.clear()
            return True
        if self._places.is_near(n):
            return context.remove(_TEXT, n)
        copy = self._places.copies[n]
        if copy is _IN_SEQUENCE:
            gone = context.remove(_TEXT, -1)
            context.copy(_HELD, _TEXT, -1, -1)
            return gone
        # The states first: the library takes no cells away from a sequence whose states do not go back as far.
        read = context.c.llama_state_seq_set_data_ext(context.handle, copy, len(copy), _TEXT, self._states)
        return bool(read and context.remove(_TEXT, n))

    # --- saving

    def _write(self) -> bytes:
        self._go_to(self._n_past)
        return super()._write()

    def restore(self, state: bytes) -> None:
        super().restore(state)
        self._places.moved(self._n_past)
