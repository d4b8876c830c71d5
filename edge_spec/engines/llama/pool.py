"""The cells of a llama.cpp context, and texts as sequences in them; see ``edge_spec/speculation/pool.py``.

llama.cpp's attention takes the cells that a row sees one by one, in the order in which they lie, and leaves out the
others without a trace. So a text has the bits that it has alone as long as its cells lie in the order of its tokens,
whatever lies between them. The library puts new tokens into the first free cells, though, and those may lie before
cells of the same text. So no cell becomes free here while there are used ones after it: those that no text holds are
kept by a sequence of their own, until all texts are copied together to the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from edge_spec.engines.llama.batch import Branches, in_plain_order
from edge_spec.engines.llama.library_context import ABORTED, NO_SLOT, LibraryContext
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.pool import CachedPath, CachedPool, Part
from edge_spec.errors import BackendError, Cancelled, ContextFull, PoolFull, StateError
from edge_spec.llama_cpp.library import library
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.pool import Path
from edge_spec.speculation.tree import EMPTY

__all__ = ["LlamaPath", "LlamaPool"]

_GARBAGE = 255
"""The sequence of cells that no text holds: the library's last one for cells, which a decode cannot name."""

_NO_ROWS = np.empty((0, 0), np.float32)


@dataclass(frozen=True, slots=True)
class _Copied:
    """Cells of a path outside of the context.

    Attributes:
        twin: the path whose first ``n_shared`` cells are its own.
        body: the others.
    """

    path: LlamaPath
    twin: LlamaPath
    n_shared: int
    body: bytes


class LlamaPool(CachedPool["LlamaPath"]):
    """See ``Pool``. It holds one text where the library would give several other bits, and where drafts are trees:
    then each of their branches needs a sequence.

    Attributes:
        context: with the cells.

    Args:
        cell_bytes: what a cell takes.
    """

    settings: LlamaSettings
    text_bytes = 0

    def __init__(
        self,
        weights: LlamaWeights,
        settings: LlamaSettings,
        *,
        profile: NumericsProfile,
        capabilities: Capabilities,
        cell_bytes: int,
    ) -> None:
        super().__init__(settings, n_vocab=weights.n_vocab, profile=profile, capabilities=capabilities)
        self.cell_bytes, self.n_cells = cell_bytes, settings.n_cells - settings.max_rows
        self.context = LibraryContext(weights, settings)
        self._branches = Branches(self.context.n_sequences)
        self._paths: list[LlamaPath] = []
        self._most_paths = settings.max_rows if settings.shares_cells else 1
        # Those that no path has.
        self._ids = [*reversed(range(self._most_paths))]
        self._is_whole = True
        self._emptied()

    def _emptied(self) -> None:
        """All cells are free."""
        self._n_holders = np.zeros(self.context.n_cells, dtype=np.int32)
        self._end = self._n_held = 0
        self._branches.clear()

    @property
    def n_free(self) -> int:
        return self.n_cells - self._n_held

    @property
    def n_shared(self) -> int:
        return int(np.count_nonzero(self._n_holders > 1))

    def path(self, like: Path | None = None) -> LlamaPath:
        return LlamaPath(self)

    def n_more(self, path: Path, n: int) -> int:
        path = self._mine(path)
        n = max(0, path.n_past + n - len(path.cells))
        return n if path.has_sequence or self._ids else max(n, self.n_free + 1)

    # --- computing

    def _reserve(self, parts: Sequence[Part[LlamaPath]]) -> None:
        self._require_free(sum(len(part.tokens) for part in parts))
        for part in parts:
            if part.tokens:
                _ = part.path.sequence

    def _require_free(self, n: int) -> None:
        if n > self.n_free:
            raise PoolFull(n_free=self.n_free, n_needed=n)

    def _compute(self, parts: Sequence[Part[LlamaPath]], *, is_decode: bool) -> Logits:
        """Compute the tokens of some parts, in cells after all others."""
        n = sum(len(part.tokens) for part in parts)
        # Padding is added after the last token, where its cells are removed again without a trace. A chunk of few
        # tokens leaves the cells that they would have as rows of a decode.
        n_rows = self.capabilities.padded(n)
        self._make_room(n_rows)
        last_sequence, end = self._put(parts, n, n_rows)
        self._is_whole = False
        code = ABORTED if self.context.abort.is_raised else self._run(parts, n_rows, logits=is_decode)
        if code:
            self._failed(code, n_rows)
        if n_rows > n:
            self._unpad(last_sequence, end)
        for part in parts:
            self._take(part.path, len(part.tokens))
        self._is_whole = True
        return self.context.rows(n) if is_decode else _NO_ROWS

    def _put(self, parts: Sequence[Part[LlamaPath]], n: int, n_rows: int) -> tuple[int, int]:
        """Fill the batch; returns the last token's sequence and the position after it."""
        batch, at = self.context.batch, 0
        if self.settings.trees and parts[0].tree is not None:
            return self._put_tree(parts[0], n_rows)
        for part in parts:
            end = at + len(part.tokens)
            batch.put_run(part.tokens, part.start, n_rows if end == n else end, at=at, sequence=part.path.sequence)
            at = end
        return parts[-1].path.sequence, parts[-1].start + len(parts[-1].tokens)

    def _put_tree(self, part: Part[LlamaPath], n_rows: int) -> tuple[int, int]:
        tree, tokens, n_past, batch = part.tree, part.tokens, part.path.n_past, self.context.batch
        assert tree is not None
        if not part.first:
            self._branches.clear()
        sequences, copies = self._branches.grow(tree)
        if tree.is_sequence:
            batch.put_run(tokens, part.start, n_rows)
            return 0, part.start + len(tokens)
        for copy in copies:
            self.context.copy(copy.source, copy.target, 0, n_past + copy.depth)
        batch.put_nodes(tokens, [n_past + depth for depth in tree.depths[part.first :]], sequences)
        end, last_sequence = n_past + tree.depths[-1] + 1, self._branches.id_of(len(tree) - 1)
        if n_rows > len(tokens):
            batch.put_run(tokens[-1:], end, n_rows, at=len(tokens), sequence=last_sequence)
        return last_sequence, end

    def _run(self, parts: Sequence[Part[LlamaPath]], n: int, *, logits: bool) -> int:
        """Run the batch's first ``n`` tokens; the library's code, 0 for success."""
        return self.context.run(n, logits=logits)

    def _unpad(self, sequence: int, end: int) -> None:
        self.context.unpad(sequence, end)

    def _mend(self) -> None:
        """Remove cells that an interrupted run, or one that failed, has left to nobody."""
        if self._is_whole:
            return
        held = {path.sequence: len(path.cells) for path in self._paths if path.has_sequence}
        gone = [self.context.remove(n, held.get(n, 0)) for n in range(self.context.n_sequences)]
        self._is_whole = True
        if not all(gone):
            self._lose_all()

    def _failed(self, code: int, n_rows: int) -> None:
        """Raise what a code means."""
        self.context.abort.lower()
        if code == ABORTED:
            raise Cancelled
        if code == NO_SLOT:
            raise ContextFull(n_past=self._end, n_new=n_rows, n_ctx=self.context.n_cells)
        # What fails for another reason may be what a damaged state has left: it would fail for ever.
        self._lose_all()
        raise BackendError(f"llama.cpp failed to decode (code {code}): {library().complaint()}")

    # --- cells

    def _take(self, path: LlamaPath, n: int) -> None:
        """The next ``n`` cells are a path's."""
        end = self._end + n
        path.cells.extend(range(self._end, end))
        self._n_holders[self._end : end] = 1
        self._end = end
        self._n_held += n

    def keep_branch(self, node: int) -> None:
        """Let the text go on with the sequence of a pending node, and end all others."""
        if self._branches.branched:
            context, chosen = self.context, self._branches.id_of(node)
            context.keep_only(chosen)
            if chosen:
                context.copy(chosen, 0, -1, -1)
                context.keep_only(0)
        self._branches.clear()

    def drop(self, path: LlamaPath, n: int) -> None:
        """Let a path have its first ``n`` cells only."""
        cells = path.cells[n:]
        if cells:
            self._drop(path, cells, n)
        if not path.cells:
            path.leave()

    def _drop(self, path: LlamaPath, cells: Sequence[int], n: int) -> None:
        """Take the last cells away from a path, which come after ``n`` others."""
        self.keep_branch(-1)
        del path.cells[n:]
        self._n_holders[cells] -= 1
        n_own = int(np.count_nonzero(self._n_holders[cells] == 0))
        self._n_held -= n_own
        if self._n_held == 0:
            self.context.clear()
            self._end = 0
            return
        if cells[0] + len(cells) == self._end and n_own == len(cells):
            # All that comes after them.
            self._end = cells[0]
        elif n_own:
            # What others hold, too, comes first.
            self.context.copy(path.sequence, _GARBAGE, n + len(cells) - n_own, -1)
        if not self.context.remove(path.sequence, n):
            raise BackendError(f"llama.cpp did not roll {self.context.weights.path.name} back to {n} tokens")

    def share(self, path: LlamaPath, fork: LlamaPath, n: int) -> None:
        """Let a path begin with the first ``n`` cells of another one."""
        if n:
            self.context.copy(path.sequence, fork.sequence, 0, n)
        fork.cells = path.cells[:n]
        self._n_holders[fork.cells] += 1

    def read(self, path: LlamaPath, body: bytes, n: int) -> None:
        """Give ``n`` cells with what was written to a path that has none.

        Raises:
            PoolFull: there are too few. StateError: they are damaged.
        """
        self.context.require_whole(body, n)
        self._require_free(n)
        self._make_room(n)
        try:
            self.context.read(path.sequence, body)
            if not self.context.holds(path.sequence, n):
                raise StateError(
                    "the saved state does not hold the text that it should", hint="read the text again instead"
                )
        except StateError:
            self.context.remove(path.sequence, -1)
            path.leave()
            if not self._n_held:
                self.context.clear()
            raise
        self._take(path, n)

    def _make_room(self, n: int) -> None:
        """Have ``n`` free cells after all others."""
        self._mend()
        if self._end + n > len(self._n_holders):
            self._restore(self._copied())

    def _copied(self, without: LlamaPath | None = None) -> list[_Copied]:
        """Copy the cells of all paths, those that several hold once."""
        self._mend()
        context, known = self.context, dict[int, LlamaPath]()
        copies = list[_Copied]()
        for path in self._paths:
            cells = path.cells
            if path is without or not cells:
                continue
            n = next((place for place in range(len(cells), 0, -1) if cells[place - 1] in known), 0)
            body = context.write(path.sequence, n, len(cells))
            copies.append(_Copied(path, known[cells[n - 1]] if n else path, n, body))
            known.update(dict.fromkeys(cells[n:], path))
        return copies

    def _restore(self, copies: Sequence[_Copied]) -> None:
        """Have the copied cells, and no others, without a gap between them."""
        context = self.context
        try:
            context.clear()
            self._emptied()
            for copied in copies:
                path, n = copied.path, copied.n_shared
                n_cells = len(path.cells)
                path.cells = copied.twin.cells[:n]
                if n:
                    context.copy(copied.twin.sequence, path.sequence, 0, n)
                    self._n_holders[path.cells] += 1
                context.read(path.sequence, copied.body)
                self._take(path, n_cells - n)
        except BaseException:
            self._lose_all()
            raise

    def shift(self, path: LlamaPath, first: int, last: int) -> None:
        """Take tokens out of a path, in a context where it is alone: the library turns all keys that there are."""
        context, sequence, n = self.context, path.sequence, len(path.cells) - (last - first)
        # What others hold, too, is never turned: what moves gets cells of its own.
        n_own = int(np.count_nonzero(self._n_holders[path.cells] == 1))
        self._require_free(n - n_own)
        body, others = context.write(sequence, 0, len(path.cells)), self._copied(without=path)
        path.forget()
        try:
            context.clear()
            context.read(sequence, body)
            context.take_out(sequence, first, last)
            # The library moves the keys when it decodes next, and only then can their cells be written out.
            context.batch.put_run([0], n, 1, sequence=sequence)
            code = ABORTED if context.abort.is_raised else context.run(1, logits=False)
            if code:
                self._failed(code, 1)
            context.remove(sequence, n)
            body = context.write(sequence, 0, n)
        finally:
            self._restore(others)
        self.read(path, body, n)

    def _lose_all(self) -> None:
        """Empty all paths."""
        self.context.clear()
        self._emptied()
        for path in self._paths:
            path.forget()

    def resize(self, n_cells: int) -> None:
        if n_cells < self._n_held:
            raise ValueError(f"{n_cells} cells, and texts hold {self._n_held}")
        copies, before = self._copied(), self.n_cells
        padding = self.settings.max_rows
        try:
            self.context.open(n_cells + padding)
            self.n_cells = n_cells
        except BackendError as error:
            self.context.open(before + padding)
            raise MemoryError(str(error)) from error
        finally:
            if self.context.is_open:
                self._restore(copies)

    # --- paths

    def lend(self) -> int:
        """Return a sequence id that no path has.

        Raises:
            PoolFull: there are as many paths with cells as there can be.
        """
        if not self._ids:
            raise PoolFull(n_free=0, n_needed=1, n_texts=self.max_paths)
        return self._ids.pop()

    def take_back(self, sequence: int) -> None:
        """Another path may have a sequence id."""
        self._ids.append(sequence)

    def add(self, path: LlamaPath) -> None:
        """There is another path."""
        self.require_open()
        self._paths.append(path)

    def leave(self, path: LlamaPath) -> None:
        """A path is closed."""
        if path in self._paths:
            self._paths.remove(path)

    def require_open(self) -> None:
        _ = self.context.handle

    def cancel(self) -> None:
        self.context.abort.raise_()

    def resume(self) -> None:
        self.context.abort.lower()

    def close(self) -> None:
        self.context.close()
        # They refer to this pool.
        self._paths.clear()


class LlamaPath(CachedPath[LlamaPool]):
    """See ``Path``. Its cells lie in the order of its tokens, pending ones at the end.

    Attributes:
        cells: where its tokens are; those of a pool for one text are counted only.
    """

    def __init__(self, pool: LlamaPool) -> None:
        super().__init__(pool)
        pool.add(self)
        self.cells: list[int] = []
        self._sequence: int | None = None

    @property
    def sequence(self) -> int:
        """The library's id, which it has as long as it has cells.

        Raises:
            PoolFull: as many paths have cells as there can be.
        """
        if self._sequence is None:
            self._sequence = self.pool.lend()
        return self._sequence

    @property
    def has_sequence(self) -> bool:
        """Whether it has an id."""
        return self._sequence is not None

    def leave(self) -> None:
        """Give the id back; there are no cells."""
        if self._sequence is not None:
            self.pool.take_back(self._sequence)
            self._sequence = None

    def drop_pending(self) -> None:
        self.pending = EMPTY
        self.pool.drop(self, self._n_past)

    def _moved_up(self, path: Sequence[int]) -> int:
        kept = in_plain_order(path) if self.settings.exact else path
        self.pool.keep_branch(kept[-1] if kept else -1)
        return len(kept)

    def _forked(self, n: int) -> tuple[Self, int]:
        fork = type(self)(self.pool)
        try:
            self.pool.share(self, fork, n)
        except PoolFull:
            fork.close()
            raise
        return fork, n

    def _take_out(self, first: int, last: int) -> None:
        self.pool.shift(self, first, last)

    def _write(self) -> bytes:
        return self.pool.context.write(self.sequence, 0, self._n_past) if self._n_past else b""

    def _read(self, body: bytes, n_past: int) -> None:
        if n_past:
            self.pool.read(self, body, n_past)

    def forget(self) -> None:
        """Its cells are lost."""
        self.cells = []
        self.leave()
        self._n_past, self.pending = 0, EMPTY

    def close(self) -> None:
        if not self._closed:
            self._closed, self._n_past = True, 0
            if self.pool.context.is_open:
                self.drop_pending()
            self.pool.leave(self)
