"""A language model on llama.cpp: one context, one KV cache."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_spec.engines.cache_state import CachedModel, check_path, n_new_nodes, pack_state, unpack_state
from edge_spec.engines.llama.architectures import CANNOT_SHIFT
from edge_spec.engines.llama.batch import Batch, Branches, in_plain_order
from edge_spec.engines.llama.settings import LlamaSettings, context_parameters
from edge_spec.errors import BackendError, Cancelled, Closed, ContextFull, Sentence, StateError
from edge_spec.llama_cpp.library import AbortFlag, library
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["LlamaModel"]

_NO_SLOT, _ABORTED = 1, 2


class LlamaModel(CachedModel):
    """A llama.cpp context over ``weights``; see ``LanguageModel`` for what its methods promise.

    ``capabilities`` start as plain decoding only; ``probe`` finds out what more is possible.

    Raises:
        BackendError: llama.cpp cannot make the context; the error quotes its reason.
    """

    def __init__(
        self, weights: LlamaWeights, settings: LlamaSettings, *, profile: NumericsProfile, capabilities: Capabilities
    ) -> None:
        super().__init__(settings, weights.n_vocab, profile, capabilities)
        lib = library()
        self._c = c = lib.c
        self._weights = weights
        self._abort = AbortFlag()
        params = context_parameters(settings)
        self._abort.install(params)
        lib.complaint()
        self._handle: Any = c.llama_init_from_model(weights.handle, params)
        if not self._handle:
            raise BackendError(
                f"llama.cpp cannot make a context of {settings.n_ctx} tokens for {weights.path.name}: "
                f"{lib.complaint()}",
                hint=Sentence("try a smaller {n_ctx}, or another {kv_k}"),
            )
        self._memory = c.llama_get_memory(self._handle)
        self._branches = Branches(params.n_seq_max)
        self._views: dict[tuple[int, int], Logits] = {}
        self._batch = Batch(c, settings.prefill_chunk, params.n_seq_max)
        self._whole_from = 0  # Before it, cells that a shorter text would see may be missing.

    @property
    def can_shift(self) -> bool:
        """Whether the library can move keys to other positions.

        The library's own answer leaves out five cases: it ends the process where rotary embeddings cover only a part
        of quantized keys and where no layer has any, it turns keys that know no positions or know them otherwise, it
        lets keys grow where YaRN has scaled them, and it saves no cells outside of a layer's window.
        """
        weights = self._weights
        if weights.architecture in CANNOT_SHIFT or not weights.has_rotary:
            return False
        has_window = self._c.llama_model_n_swa(weights.handle) > 0
        is_quantized = self.settings.kv_k not in ("f32", "f16", "bf16")
        turns_part = weights.n_rotary != weights.head_dim_k
        if has_window or weights.rope_scaling == "yarn" or (is_quantized and turns_part):
            return False
        return bool(self._c.llama_memory_can_shift(self._memory))

    def prefill(self, tokens: Sequence[int]) -> None:
        self._open()
        self._require_room(len(tokens))
        self._drop_pending()
        for start in range(0, len(tokens), self.settings.prefill_chunk):
            chunk = tokens[start : start + self.settings.prefill_chunk]
            # A chunk of few tokens leaves the cells that they would have as rows of a decode.
            n_rows = self.capabilities.padded(len(chunk))
            self._batch.put_run(chunk, self._n_past, n_rows)
            self._decode(n_rows, logits=False)
            self._n_past += len(chunk)
            if n_rows > len(chunk):
                self._unpad(0, self._n_past)

    def decode(self, tree: Tree) -> Logits:
        first = len(self._pending)
        n = n_new_nodes(tree, self._pending, max_rows=self.settings.max_rows)
        self._open()
        self._require_room(len(tree), drafts=True)
        # Padding is added after the last node, where its cells are removed again without a trace.
        n_rows = self.capabilities.padded(n)
        if not first:
            self._branches.clear()
        last_sequence, end = self._place(tree, first, n_rows)
        self._decode(n_rows, logits=True)
        if n_rows > n:
            self._unpad(last_sequence, end)
        self._pending = tree
        return self._rows(n)

    def _unpad(self, sequence: int, end: int) -> None:
        """Remove the cells of padding, which come after position ``end`` of a sequence."""
        if not self._c.llama_memory_seq_rm(self._memory, sequence, end, -1):
            raise BackendError("llama.cpp did not remove padding from its cache")

    def _place(self, tree: Tree, first: int, n_rows: int) -> tuple[int, int]:
        """Fill the batch with the new nodes of a tree; returns the last node's sequence and the position after it."""
        sequences, copies = self._branches.grow(tree)
        tokens = tree.tokens[first:]
        if tree.is_sequence:
            start = self._n_past + first
            self._batch.put_run(tokens, start, n_rows)
            return 0, start + len(tokens)
        for copy in copies:
            self._c.llama_memory_seq_cp(self._memory, copy.source, copy.target, 0, self._n_past + copy.depth)
        self._batch.put_nodes(tokens, [self._n_past + depth for depth in tree.depths[first:]], sequences)
        end = self._n_past + tree.depths[-1] + 1
        last_sequence = self._branches.id_of(len(tree) - 1)
        if n_rows > len(tokens):
            self._batch.put_run(tokens[-1:], end, n_rows, at=len(tokens), sequence=last_sequence)
        return last_sequence, end

    def _rows(self, n: int) -> Logits:
        """Return the first ``n`` rows of the library's output, in place."""
        address = ctypes.addressof(self._c.llama_get_logits(self._handle).contents)
        rows = self._views.get((address, n))
        if rows is None:
            size = n * self.n_vocab
            buffer = (ctypes.c_float * size).from_address(address)
            rows = np.ctypeslib.as_array(buffer).reshape(n, self.n_vocab)
            rows.flags.writeable = False
            self._views[address, n] = rows
        return rows

    def keep(self, path: Sequence[int]) -> None:
        self._open()
        check_path(path, self._pending)
        kept = in_plain_order(path) if self.settings.exact else path
        end = self._n_past + len(kept)
        chosen = self._branches.id_of(kept[-1]) if kept else 0
        self._cut(chosen, end)

    def rollback(self, n_past: int) -> None:
        self._open()
        self._require_tokens("rollback", n_past, self._n_past)
        if n_past < self._whole_from:
            n_past = 0
        if n_past == 0:
            self._clear()
        elif n_past < self._n_past or self._pending:
            self._cut(0, n_past)

    def _clear(self) -> None:
        """Forget the whole text, which every model can."""
        self._c.llama_memory_clear(self._memory, False)
        self._branches.clear()
        self._pending = EMPTY
        self._n_past = self._whole_from = 0

    def _cut(self, chosen: int, end: int) -> None:
        """Keep the cells of one sequence before position ``end`` as the text, and nothing else."""
        c, memory = self._c, self._memory
        good = c.llama_memory_seq_rm(memory, chosen, end, -1)
        if self._branches.branched:
            c.llama_memory_seq_keep(memory, chosen)
            if chosen:
                c.llama_memory_seq_cp(memory, chosen, 0, -1, -1)
                c.llama_memory_seq_keep(memory, 0)
        self._branches.clear()
        self._pending = EMPTY
        self._n_past = end
        if not good:
            raise BackendError(f"llama.cpp did not roll {self._weights.path.name} back to {end} tokens")

    def _drop_pending(self) -> None:
        if self._pending:
            self._cut(0, self._n_past)

    def shift(self, first: int, last: int) -> None:
        self._open()
        self._drop_pending()
        self._require_tokens("shift", first, last)
        c, memory, n_past = self._c, self._memory, self._n_past - (last - first)
        try:
            c.llama_memory_seq_rm(memory, 0, first, last)
            c.llama_memory_seq_add(memory, 0, last, -1, first - last)
            # The library moves the keys when it decodes next, and only then can their cells be written out.
            self._n_past = n_past
            self._batch.put_run([0], n_past, 1)
            self._decode(1, logits=False)
            c.llama_memory_seq_rm(memory, 0, n_past, -1)
            # What was removed has left holes, which single tokens and drafts might fill in different orders.
            body = self._write()
            c.llama_memory_clear(memory, False)
            self._read(body)
        except BaseException:
            # Half a shift is not a text.
            self.rollback(0)
            raise

    def save(self) -> bytes:
        self._open()
        self._drop_pending()
        return pack_state(self._write(), n_past=self._n_past, profile=self.profile.name)

    def _write(self) -> bytes:
        size = self._c.llama_state_seq_get_size(self._handle, 0)
        buffer = (ctypes.c_uint8 * size)()
        n = self._c.llama_state_seq_get_data(self._handle, buffer, size, 0)
        if n == 0:
            raise BackendError("llama.cpp did not save the cache")
        return bytes(memoryview(buffer)[:n])

    def restore(self, state: bytes) -> None:
        self.rollback(0)
        body, n_past = unpack_state(state, profile=self.profile.name, n_ctx=self.n_ctx)
        self._read(body)
        if self._c.llama_memory_seq_pos_max(self._memory, 0) != n_past - 1:
            self._clear()
            raise StateError(
                "the saved state does not hold the text that it should", hint="read the text again instead"
            )
        self._n_past = n_past
        # The library saves no cells that the next token does not see. Half a window: some look to both sides.
        window = self._c.llama_model_n_swa(self._weights.handle)
        self._whole_from = n_past if 0 < window < 2 * n_past else 0

    def _read(self, body: bytes) -> None:
        buffer = (ctypes.c_uint8 * len(body)).from_buffer_copy(body)
        if self._c.llama_state_seq_set_data(self._handle, buffer, len(body), 0) == 0:
            self._c.llama_memory_clear(self._memory, False)
            self._n_past = 0
            raise StateError("llama.cpp does not accept the saved state", hint="read the text again instead")

    def cancel(self) -> None:
        self._abort.raise_()

    def resume(self) -> None:
        self._abort.lower()

    def close(self) -> None:
        handle, self._handle = self._handle, None
        self._views.clear()
        if handle:
            self._c.llama_free(handle)

    def _open(self) -> None:
        if self._handle is None:
            raise Closed(f"the model {self._weights.path.name}")

    def _run(self, n: int, *, logits: bool) -> int:
        """Run the batch's first ``n`` tokens; the library's code, 0 for success."""
        return int(self._c.llama_decode(self._handle, self._batch.taken(n, logits=logits)))

    def _decode(self, n: int, *, logits: bool) -> None:
        """Run the batch's first ``n`` tokens; on failure the cache is the committed text again, or empty."""
        code = _ABORTED if self._abort.is_raised else self._run(n, logits=logits)
        if code == 0:
            return
        self._abort.lower()
        try:
            # What fails for another reason may be what a damaged state has left: it would fail for ever.
            self._cut(0, self._n_past if code in (_ABORTED, _NO_SLOT) else 0)
        except BackendError:
            # A cache that cannot be rolled back is emptied; the text is then read again.
            self.rollback(0)
        if code == _ABORTED:
            raise Cancelled
        if code == _NO_SLOT:
            raise ContextFull(n_past=self._n_past, n_new=n, n_ctx=self.settings.n_ctx)
        raise BackendError(f"llama.cpp failed to decode (code {code}): {library().complaint()}")
