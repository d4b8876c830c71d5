"""The cells of a llama.cpp context, and texts as sequences in them; see ``edge_spec/speculation/pool.py``.

llama.cpp's attention takes the cells that a row sees one by one, in the order in which they lie, and leaves out the
others without a trace. So a text has the bits that it has alone as long as its cells lie in the order of its tokens,
whatever lies between them. The library puts new tokens into the first free cells, though, and those may lie before
cells of the same text. So no cell becomes free here while there are used ones after it: those that no text holds are
kept by a sequence of their own, until all texts are copied together to the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edge_spec.engines.cache_state import (
    CachedModel,
    check_path,
    n_new_nodes,
    pack_state,
    require_distinct,
    unpack_state,
)
from edge_spec.engines.llama.library_context import ABORTED, NO_SLOT, LibraryContext
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.errors import BackendError, Cancelled, Closed, ContextFull, PoolFull, StateError
from edge_spec.llama_cpp.library import library
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.pool import Path
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["LlamaPath", "LlamaPool", "SharedModel"]

_GARBAGE = 255
"""The sequence of cells that no text holds: the library's last one for cells, which a decode cannot name."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The tokens of a run that belong to one path, which come after ``first`` others."""

    path: LlamaPath
    tokens: Sequence[int]
    first: int


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


class LlamaPool:
    """See ``Pool``.

    Attributes:
        context: with the cells.

    Args:
        cell_bytes: what a cell takes.
    """

    def __init__(
        self,
        weights: LlamaWeights,
        settings: LlamaSettings,
        *,
        profile: NumericsProfile,
        capabilities: Capabilities,
        cell_bytes: int,
    ) -> None:
        self.settings = settings
        self.profile = profile
        self.capabilities = capabilities
        self.n_vocab = weights.n_vocab
        self.n_ctx = settings.n_ctx
        self.cell_bytes, self.text_bytes = cell_bytes, 0
        self.n_cells = settings.n_cells - settings.max_rows
        self.context = LibraryContext(weights, settings)
        self._paths: list[LlamaPath] = []
        # The last one is the context's spare.
        self._ids = [*reversed(range(self.context.n_sequences - 1))]
        self._is_whole = True
        self._emptied()

    def _emptied(self) -> None:
        """All cells are free."""
        self._n_holders = np.zeros(self.context.n_cells, dtype=np.int32)
        self._end = self._n_held = 0

    @property
    def max_rows(self) -> int:
        return self.capabilities.max_rows

    @property
    def max_paths(self) -> int:
        return self.settings.max_rows

    @property
    def n_free(self) -> int:
        return self.n_cells - self._n_held

    @property
    def n_shared(self) -> int:
        return int(np.count_nonzero(self._n_holders > 1))

    def path(self, target: Path | None = None) -> LlamaPath:
        return LlamaPath(self)

    def n_more(self, path: Path, n: int) -> int:
        path = self._own(path)
        n = max(0, path.n_past + n - len(path.cells))
        return n if path.has_sequence or self._ids else max(n, self.n_free + 1)

    def _own(self, path: Path) -> LlamaPath:
        if not isinstance(path, LlamaPath) or path.pool is not self:
            raise ValueError("a text of another pool")
        return path

    # --- computing

    def decode(self, trees: Sequence[tuple[Path, Tree]]) -> list[Logits]:
        drafts = [(self._own(path), tree) for path, tree in trees]
        require_distinct(path for path, _ in drafts)
        parts = [path.part_of(tree) for path, tree in drafts]
        counts = [len(part.tokens) for part in parts]
        n = sum(counts)
        if n > self.settings.max_rows:
            raise ValueError(f"{n} rows in one decode; from 1 to {self.settings.max_rows} are possible")
        self._run(parts, logits=True)
        for path, tree in drafts:
            path.pending = tree
        rows = self.context.rows(n)
        return [rows] if len(parts) == 1 else np.split(rows, np.cumsum(counts)[:-1])

    def prefill(self, texts: Sequence[tuple[Path, Sequence[int]]]) -> None:
        given = [(self._own(path), tokens) for path, tokens in texts]
        require_distinct(path for path, _ in given)
        for path, tokens in given:
            path.require_room(len(tokens))
        for path, _ in given:
            path.drop_pending()
        self._require_free(sum(len(tokens) for _, tokens in given))
        _ = [path.sequence for path, tokens in given if tokens]
        for parts in _chunks(given, self.settings.prefill_chunk):
            self._run(parts, logits=False)
            for part in parts:
                part.path.read(len(part.tokens))

    def _require_free(self, n: int) -> None:
        if n > self.n_free:
            raise PoolFull(n_free=self.n_free, n_needed=n)

    def _run(self, parts: Sequence[_Part], *, logits: bool) -> None:
        """Compute the tokens of some parts, in cells after all others."""
        n = sum(len(part.tokens) for part in parts)
        self._mend()
        self._require_free(n)
        # Padding is added after the last token, where its cells are removed again without a trace.
        n_rows = self.capabilities.padded(n)
        self._make_room(n_rows)
        batch, at = self.context.batch, 0
        for part in parts:
            end = at + len(part.tokens)
            place = n_rows if end == n else end
            batch.put_run(part.tokens, part.first, place, at=at, sequence=part.path.sequence)
            at = end
        self._is_whole = False
        code = ABORTED if self.context.abort.is_raised else self.context.run(n_rows, logits=logits)
        if code:
            self._failed(code, parts, n_rows)
        if n_rows > n:
            self.context.unpad(parts[-1].path.sequence, parts[-1].first + len(parts[-1].tokens))
        for part in parts:
            self._take(part.path, len(part.tokens))
        self._is_whole = True

    def _mend(self) -> None:
        """Remove cells that an interrupted run has left to nobody."""
        if not self._is_whole:
            for path in self._paths:
                if path.has_sequence:
                    self.context.remove(path.sequence, len(path.cells))
            for sequence in self._ids:
                self.context.remove(sequence, 0)
            self._is_whole = True

    def _failed(self, code: int, parts: Sequence[_Part], n_rows: int) -> None:
        """Raise what a code means; nothing is pending in the paths then."""
        self.context.abort.lower()
        if code in (ABORTED, NO_SLOT):
            for part in parts:
                self.context.remove(part.path.sequence, part.first)
                part.path.drop_pending()
        else:
            # What fails for another reason may be what a damaged state has left: it would fail for ever.
            self._lose_all()
        if code == ABORTED:
            raise Cancelled
        if code == NO_SLOT:
            raise ContextFull(n_past=self._end, n_new=n_rows, n_ctx=self.context.n_cells)
        raise BackendError(f"llama.cpp failed to decode (code {code}): {library().complaint()}")

    # --- cells

    def _take(self, path: LlamaPath, n: int) -> None:
        """The next ``n`` cells are a path's."""
        end = self._end + n
        path.cells.extend(range(self._end, end))
        self._n_holders[self._end : end] = 1
        self._end = end
        self._n_held += n

    def drop(self, path: LlamaPath, n: int) -> None:
        """Let a path have its first ``n`` cells only."""
        cells = path.cells[n:]
        if cells:
            self._drop(path, cells, n)
        if not path.cells:
            path.leave()

    def _drop(self, path: LlamaPath, cells: Sequence[int], n: int) -> None:
        """Take the last cells away from a path, which come after ``n`` others."""
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
        self.context.remove(path.sequence, n)

    def fork(self, path: LlamaPath, n: int) -> LlamaPath:
        """Return a path that begins with the first ``n`` cells of another one."""
        if n and not self._ids:
            raise PoolFull(n_free=0, n_needed=1, n_texts=self.max_paths)
        fork = LlamaPath(self)
        if n:
            self.context.copy(path.sequence, fork.sequence, 0, n)
        fork.cells = path.cells[:n]
        self._n_holders[fork.cells] += 1
        return fork

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
            if not self._n_held:
                self.context.clear()
            raise
        self._take(path, n)

    def _make_room(self, n: int) -> None:
        """Have ``n`` free cells after all others."""
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
                self._failed(code, (), 1)
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
        _ = self.context.handle
        self._paths.append(path)

    def leave(self, path: LlamaPath) -> None:
        """A path is closed."""
        if path in self._paths:
            self._paths.remove(path)

    def close(self) -> None:
        self.context.close()
        # They refer to this pool.
        self._paths.clear()


class LlamaPath(CachedModel):
    """See ``Path``. Its cells lie in the order of its tokens, pending ones at the end.

    Attributes:
        pool: that its cells are of.
        cells: where its tokens are.
    """

    def __init__(self, pool: LlamaPool) -> None:
        self.pool = pool
        super().__init__(pool.settings, pool.n_vocab, pool.profile, pool.capabilities)
        pool.add(self)
        self.cells: list[int] = []
        self._sequence: int | None = None
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return self.pool.capabilities

    @capabilities.setter
    def capabilities(self, found: Capabilities) -> None:
        self.pool.capabilities = found

    @property
    def profile(self) -> NumericsProfile:
        return self.pool.profile

    @profile.setter
    def profile(self, profile: NumericsProfile) -> None:
        self.pool.profile = profile

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

    @property
    def pending(self) -> Tree:
        """What has been decoded and neither kept nor rolled back."""
        return self._pending

    @pending.setter
    def pending(self, tree: Tree) -> None:
        self._pending = tree

    def prefill(self, tokens: Sequence[int]) -> None:
        self.pool.prefill([(self, tokens)])

    def decode(self, tree: Tree) -> Logits:
        return self.pool.decode([(self, tree)])[0]

    def part_of(self, tree: Tree) -> _Part:
        """Return what has to be computed of a tree; refuses one that cannot be decoded."""
        n_new_nodes(tree, self._pending, max_rows=self.settings.max_rows)
        self.require_room(len(tree), drafts=True)
        if not tree.is_sequence:
            raise ValueError("this model takes sequences, not trees")
        first = len(self._pending)
        return _Part(self, tree.tokens[first:], self._n_past + first)

    def require_room(self, n_new: int, *, drafts: bool = False) -> None:
        """Refuse tokens that do not fit after the text; drafts may extend beyond the context."""
        self._open()
        self._require_room(n_new, drafts=drafts)

    def read(self, n: int) -> None:
        """So many tokens, which have been computed, are committed."""
        self._n_past += n

    def drop_pending(self) -> None:
        """Forget the pending tree, and give back the cells after the text."""
        self._pending = EMPTY
        self.pool.drop(self, self._n_past)

    def keep(self, path: Sequence[int]) -> None:
        self._open()
        check_path(path, self._pending)
        self._n_past += len(path)
        self.drop_pending()

    def rollback(self, n_past: int) -> None:
        self._open()
        self._require_tokens("rollback", n_past, self._n_past)
        self._n_past = n_past
        self.drop_pending()

    def fork(self, n: int) -> LlamaPath:
        self._open()
        self._require_tokens("fork", n, self._n_past)
        fork = self.pool.fork(self, n)
        fork._n_past = n
        return fork

    def shift(self, first: int, last: int) -> None:
        self._open()
        self.drop_pending()
        self._require_tokens("shift", first, last)
        n_past = self._n_past - (last - first)
        self.pool.shift(self, first, last)
        self._n_past = n_past

    def save(self) -> bytes:
        self._open()
        self.drop_pending()
        return pack_state(
            self.pool.context.write(self.sequence, 0, self._n_past), n_past=self._n_past, profile=self.profile.name
        )

    def restore(self, state: bytes) -> None:
        self.rollback(0)
        body, n_past = unpack_state(state, profile=self.profile.name, n_ctx=self.n_ctx)
        self.pool.read(self, body, n_past)
        self._n_past = n_past

    def forget(self) -> None:
        """Its cells are lost."""
        self.cells = []
        self.leave()
        self._n_past = 0
        self._pending = EMPTY

    def cancel(self) -> None:
        self.pool.context.abort.raise_()

    def resume(self) -> None:
        self.pool.context.abort.lower()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._n_past = 0
            if self.pool.context.is_open:
                self.drop_pending()
            self.pool.leave(self)

    def _open(self) -> None:
        if self._closed:
            raise Closed("this text")
        _ = self.pool.context.handle


class SharedModel(LlamaPath):
    """A model whose cells are a pool: the first path of it."""

    @property
    def context(self) -> LibraryContext:
        """What computes."""
        return self.pool.context

    def close(self) -> None:
        self.pool.close()


def _chunks(texts: Sequence[tuple[LlamaPath, Sequence[int]]], size: int) -> Iterator[list[_Part]]:
    """Yield texts cut and packed into runs of so many tokens."""
    parts: list[_Part] = []
    room = size
    for path, tokens in texts:
        first = 0
        start = path.n_past
        while first < len(tokens):
            parts.append(_Part(path, tokens[first : first + room], start + first))
            first, room = first + len(parts[-1].tokens), room - len(parts[-1].tokens)
            if room == 0:
                yield parts
                parts, room = [], size
    if parts:
        yield parts
