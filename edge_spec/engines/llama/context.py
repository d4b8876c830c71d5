"""A language model on llama.cpp: one context, one KV cache."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.engines.cache_state import CachedModel, check_path, n_new_nodes, pack_state, unpack_state
from edge_spec.engines.llama.batch import Branches, in_plain_order
from edge_spec.engines.llama.library_context import ABORTED, NO_SLOT, LibraryContext
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.errors import BackendError, Cancelled, ContextFull, StateError
from edge_spec.llama_cpp.library import library
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["LlamaModel"]


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
        self.context = LibraryContext(weights, settings)
        self._branches = Branches(self.context.n_sequences)

    def prefill(self, tokens: Sequence[int]) -> None:
        self._open()
        self._require_room(len(tokens))
        self._drop_pending()
        for start in range(0, len(tokens), self.settings.prefill_chunk):
            chunk = tokens[start : start + self.settings.prefill_chunk]
            # A chunk of few tokens leaves the cells that they would have as rows of a decode.
            n_rows = self.capabilities.padded(len(chunk))
            self.context.batch.put_run(chunk, self._n_past, n_rows)
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
        return self.context.rows(n)

    def _place(self, tree: Tree, first: int, n_rows: int) -> tuple[int, int]:
        """Fill the batch with the new nodes of a tree; returns the last node's sequence and the position after it."""
        sequences, copies = self._branches.grow(tree)
        tokens = tree.tokens[first:]
        if tree.is_sequence:
            start = self._n_past + first
            self.context.batch.put_run(tokens, start, n_rows)
            return 0, start + len(tokens)
        for copy in copies:
            self.context.copy(copy.source, copy.target, 0, self._n_past + copy.depth)
        self.context.batch.put_nodes(tokens, [self._n_past + depth for depth in tree.depths[first:]], sequences)
        end = self._n_past + tree.depths[-1] + 1
        last_sequence = self._branches.id_of(len(tree) - 1)
        if n_rows > len(tokens):
            self.context.batch.put_run(tokens[-1:], end, n_rows, at=len(tokens), sequence=last_sequence)
        return last_sequence, end

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
        if n_past == 0:
            self._clear()
        elif n_past < self._n_past or self._pending:
            self._cut(0, n_past)

    def _clear(self) -> None:
        """Forget the whole text, which every model can."""
        self.context.clear()
        self._branches.clear()
        self._pending = EMPTY
        self._n_past = 0

    def _cut(self, chosen: int, end: int) -> None:
        """Keep the cells of one sequence before position ``end`` as the text, and nothing else."""
        context = self.context
        good = context.remove(chosen, end)
        if self._branches.branched:
            context.keep_only(chosen)
            if chosen:
                context.copy(chosen, 0, -1, -1)
                context.keep_only(0)
        self._branches.clear()
        self._pending = EMPTY
        self._n_past = end
        if not good:
            raise BackendError(f"llama.cpp did not roll {self.context.weights.path.name} back to {end} tokens")

    def _drop_pending(self) -> None:
        if self._pending:
            self._cut(0, self._n_past)

    def shift(self, first: int, last: int) -> None:
        self._open()
        self._drop_pending()
        self._require_tokens("shift", first, last)
        context, n_past = self.context, self._n_past - (last - first)
        try:
            context.take_out(0, first, last)
            # The library moves the keys when it decodes next, and only then can their cells be written out.
            self._n_past = n_past
            context.batch.put_run([0], n_past, 1)
            self._decode(1, logits=False)
            context.remove(0, n_past)
            # What was removed has left holes, which single tokens and drafts might fill in different orders.
            body = self._write()
            context.clear()
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
        return self.context.write(0, 0, self._n_past)

    def restore(self, state: bytes) -> None:
        self.rollback(0)
        body, n_past = unpack_state(state, profile=self.profile.name, n_ctx=self.n_ctx)
        self.context.require_whole(body, n_past)
        self._read(body)
        if not self.context.holds(0, n_past):
            self._clear()
            raise StateError(
                "the saved state does not hold the text that it should", hint="read the text again instead"
            )
        self._n_past = n_past

    def _read(self, body: bytes) -> None:
        try:
            self.context.read(0, body)
        except StateError:
            self.context.clear()
            self._n_past = 0
            raise

    def cancel(self) -> None:
        self.context.abort.raise_()

    def resume(self) -> None:
        self.context.abort.lower()

    def close(self) -> None:
        self.context.close()

    def _open(self) -> None:
        _ = self.context.handle

    def _unpad(self, sequence: int, end: int) -> None:
        self.context.unpad(sequence, end)

    def _run(self, n: int, *, logits: bool) -> int:
        """Run the batch's first ``n`` tokens; the library's code, 0 for success."""
        return self.context.run(n, logits=logits)

    def _decode(self, n: int, *, logits: bool) -> None:
        """Run the batch's first ``n`` tokens; on failure the cache is the committed text again, or empty."""
        code = ABORTED if self.context.abort.is_raised else self._run(n, logits=logits)
        if code == 0:
            return
        self.context.abort.lower()
        try:
            # What fails for another reason may be what a damaged state has left: it would fail for ever.
            self._cut(0, self._n_past if code in (ABORTED, NO_SLOT) else 0)
        except BackendError:
            # A cache that cannot be rolled back is emptied; the text is then read again.
            self.rollback(0)
        if code == ABORTED:
            raise Cancelled
        if code == NO_SLOT:
            raise ContextFull(n_past=self._n_past, n_new=n, n_ctx=self.settings.n_ctx)
        raise BackendError(f"llama.cpp failed to decode (code {code}): {library().complaint()}")
