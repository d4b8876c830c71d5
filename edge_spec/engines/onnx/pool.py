"""The cells of a transcription, and texts as paths through them; see ``edge_spec/speculation/pool.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_spec.engines.cache_state import check_path, n_new_nodes, pack_state, require_distinct, unpack_state
from edge_spec.engines.onnx.features import Features
from edge_spec.engines.onnx.session import Session
from edge_spec.engines.onnx.states import States, most_copies
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tiles import PathTiles, Tiles, n_tiles
from edge_spec.errors import Closed, ContextFull, StateError
from edge_spec.memory.usage import trim_heap
from edge_spec.speculation.language_model import Capabilities, LanguageModel, Logits, NumericsProfile
from edge_spec.speculation.pool import TILE, Path
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["OnnxPath", "OnnxPool", "Part", "PathFeatures", "TranscribedModel"]


class Part(NamedTuple):
    """The tokens of a run that belong to one path.

    Attributes:
        first: nodes that are pending already, in the cells after the text.
        n_read: how many of the tokens are committed with the run, so that states take them in.
        tree: all pending nodes, those of this run included; None if each is the parent of the next.
    """

    path: OnnxPath
    tokens: Sequence[int]
    first: int = 0
    tree: Tree | None = None
    n_read: int = 0

    @property
    def n_pending(self) -> int:
        """All pending nodes, those of this run included."""
        return self.first + len(self.tokens)

    @property
    def cells(self) -> npt.NDArray[np.intp]:
        """Where the tokens go."""
        n_past = self.path.n_past
        return self.path.tiles.cells(n_past + self.first, n_past + self.n_pending)


class OnnxPool:
    """See ``Pool``.

    Args:
        session: nothing else may hold it: its memory is freed when the pool is closed, even while it is referred to.
    """

    def __init__(
        self,
        session: Session,
        settings: ModelSettings,
        *,
        name: str,
        profile: NumericsProfile,
        capabilities: Capabilities,
    ) -> None:
        self.settings = settings
        self.profile = profile
        self.capabilities = capabilities
        self.n_vocab = session.n_vocab
        self.n_ctx = settings.n_ctx
        states = session.states
        self.text_bytes = 0 if states is None else states.kept_bytes + states.state_bytes * (1 + most_copies(settings))
        self.tiles = Tiles(session.n_tiles)
        self._session: Session | None = session
        self._name = name

    @property
    def cell_bytes(self) -> int:
        return self._session.cell_bytes if self._session is not None else 0

    @property
    def max_rows(self) -> int:
        return self.capabilities.max_rows

    @property
    def max_paths(self) -> int:
        return sys.maxsize

    @property
    def n_cells(self) -> int:
        return self.tiles.n * TILE

    @property
    def n_free(self) -> int:
        return self.tiles.n_free * TILE

    @property
    def n_shared(self) -> int:
        return self.tiles.n_shared * TILE

    def path(self, target: Path | None = None) -> OnnxPath:
        return OnnxPath(self)

    def n_more(self, path: Path, n: int) -> int:
        path = self._own(path)
        return path.tiles.n_needed(path.n_past, path.n_past + n) * TILE

    def decode(self, trees: Sequence[tuple[Path, Tree]]) -> list[Logits]:
        drafts = [(self._own(path), tree) for path, tree in trees]
        parts = [path.part_of(tree) for path, tree in drafts]
        n = sum(len(part.tokens) for part in parts)
        if n > self.settings.max_rows:
            raise ValueError(f"{n} rows in one decode; from 1 to {self.settings.max_rows} are possible")
        self._reserve(parts)
        # Should the run fail, nothing is pending any more.
        for path, _ in drafts:
            path.pending = EMPTY
        try:
            rows = self._compute(parts, range(n))
        except BaseException:
            for path, _ in drafts:
                path.drop_pending()
            raise
        for path, tree in drafts:
            path.pending = tree
        ends = [*accumulate(len(part.tokens) for part in parts)]
        return [rows[first:end] for first, end in zip([0, *ends], ends, strict=False)]

    def prefill(self, texts: Sequence[tuple[Path, Sequence[int]]]) -> None:
        given = [(self._own(path), tokens) for path, tokens in texts]
        for path, tokens in given:
            path.require_room(len(tokens))
        for path, _ in given:
            path.drop_pending()
        self._reserve([Part(path, tokens) for path, tokens in given])
        for path, _ in given:
            path.reads()
        try:
            for parts in _chunks(given, self.settings):
                n = sum(len(part.tokens) for part in parts)
                self._compute(parts, range(n - 1, n))
                for part in parts:
                    part.path.read(len(part.tokens))
                if n > self.settings.max_rows:
                    # What the runtime gives back the C library keeps in fragments, more with every chunk.
                    trim_heap()
        except BaseException:
            for path, _ in given:
                # Some layers may have taken in what others have not.
                path.rollback(path.n_past)
            raise
        for path, _ in given:
            path.drop_pending()

    def _compute(self, parts: Sequence[Part], rows: range) -> Logits:
        """Compute the tokens of some parts; returns the rows that are wanted."""
        session, ids = self.session, [token for part in parts for token in part.tokens]
        n_run = self.capabilities.padded(len(ids))
        session.ids[:n_run] = ids + [0] * (n_run - len(ids))
        states = [part.path.prepared(part) for part in parts] if session.states is not None else []
        logits = session.run(_numbers_of(parts), n_run, rows, states)
        if session.features is not None:
            session.features.keep(np.concatenate([part.cells for part in parts]))
        return logits

    def settle(self, states: Sequence[int]) -> None:
        """Run the graph without a row, which lets the states of a text take in what is kept for them."""
        self.session.run(_numbers_of(()), 0, range(0), [states])

    def _reserve(self, parts: Sequence[Part]) -> None:
        """Have cells for the pending nodes of some parts."""
        session = self.session
        require_distinct(part.path for part in parts)
        places = [(part.path.tiles, part.path.n_past, part.path.n_past + part.n_pending) for part in parts]
        self.copy_tiles(session, self.tiles.reserve(places))

    def copy_tiles(self, session: Session, copies: Sequence[tuple[int, int]]) -> None:
        """Copy tiles to others."""
        if copies:
            lanes = np.arange(TILE)
            pairs = np.array(copies)[:, :, None] * TILE + lanes
            session.copy(pairs[:, 0].reshape(-1), pairs[:, 1].reshape(-1))

    def resize(self, n_cells: int) -> None:
        session, old, n = self.session, self.tiles.n, n_tiles(n_cells)
        moved = self.tiles.resize(n)
        self.copy_tiles(session, list(moved.items()))
        try:
            session.resize(n, self.tiles.end)
        except MemoryError:
            self.tiles.resize(old)
            raise

    @property
    def session(self) -> Session:
        """What computes; only for as long as the pool is open."""
        if self._session is None:
            raise Closed(f"the model {self._name}")
        return self._session

    def _own(self, path: Path) -> OnnxPath:
        if not isinstance(path, OnnxPath) or path.pool is not self:
            raise ValueError("a text of another pool")
        return path

    def cancel(self) -> None:
        """Make a run in progress, or else the next one, raise ``Cancelled``."""
        if self._session is not None:
            self._session.cancel()

    def resume(self) -> None:
        """Forget a ``cancel``."""
        if self._session is not None:
            self._session.resume()

    def drop_features(self, features: Features) -> None:
        """Free them. Safe to call twice, and after the pool was closed."""
        if self._session is not None:
            self._session.drop_features(features)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


class OnnxPath:
    """See ``Path``. Pending nodes are in the places after the text, in the path's own tiles: so keeping a side branch
    moves its cells up to the text.

    With recurrent layers it takes sequences, and goes back to the places that there are states of: the last tokens of
    what was computed can be taken back. Targets also keep the state where a prompt begins to be read and where it ends:
    an answer can be written again, or left out, without reading the whole text. Drafters keep theirs at the text that
    is certain.

    Attributes:
        pool: that its cells are of.
        kept: see ``LanguageModel``.
        tiles: where its cells are.
        pending: what has been decoded and neither kept nor rolled back.
        states: of recurrent layers; None where there are none.
    """

    def __init__(self, pool: OnnxPool) -> None:
        self.pool = pool
        self.kept: KeptTokens | None = None
        self.tiles = PathTiles(pool.tiles)
        self.pending: Tree = EMPTY
        self._n_past = 0
        self._closed = False
        memory = pool.session.states
        self.states = States(memory) if memory is not None else None

    @property
    def settings(self) -> ModelSettings:
        """The settings that its model was opened with."""
        return self.pool.settings

    @property
    def n_vocab(self) -> int:
        return self.pool.n_vocab

    @property
    def n_ctx(self) -> int:
        return self.pool.n_ctx

    @property
    def n_past(self) -> int:
        return self._n_past

    @property
    def capabilities(self) -> Capabilities:
        return self.pool.capabilities

    @property
    def profile(self) -> NumericsProfile:
        return self.pool.profile

    def prefill(self, tokens: Sequence[int]) -> None:
        self.pool.prefill([(self, tokens)])

    def decode(self, tree: Tree) -> Logits:
        return self.pool.decode([(self, tree)])[0]

    def part_of(self, tree: Tree) -> Part:
        """Return what has to be computed of a tree; refuses one that cannot be decoded."""
        n_new_nodes(tree, self.pending, max_rows=self.settings.max_rows)
        self.require_room(len(tree), drafts=True)
        if not (tree.is_sequence or self.settings.trees):
            raise ValueError("this model takes sequences, not trees")
        first = len(self.pending)
        return Part(self, tree.tokens[first:], first, None if tree.is_sequence else tree)

    def require_room(self, n_new: int, *, drafts: bool = False) -> None:
        """Refuse tokens that do not fit after the text; drafts may extend beyond the context."""
        self._open()
        if self._n_past + n_new > self.n_ctx + drafts * self.settings.max_rows:
            raise ContextFull(n_past=self._n_past, n_new=n_new, n_ctx=self.n_ctx)

    def reads(self) -> None:
        """A prompt is being read, from here on if none was read before."""
        if self.states is not None:
            self.states.reads(self._n_past)
        self._mark_prompt()

    def read(self, n: int) -> None:
        """So many tokens, which have been computed, are committed."""
        self._n_past += n
        self._mark_prompt()

    def _mark_prompt(self) -> None:
        if self.states is not None and self.settings.exact:
            self.states.mark_prompt(self._n_past)

    def prepared(self, part: Part) -> list[int]:
        """Return what the next run has to know of the states, which are made ready for it."""
        assert self.states is not None
        return self.states.prepare(self._n_past, part.first, len(part.tokens), part.n_read, self.pool.settle)

    def drop_pending(self) -> None:
        """Forget the pending tree, and give back the tiles after the text, and the states of an empty one."""
        self.pending = EMPTY
        if self.states is not None and self._n_past == 0:
            self.states.forget()
        self.tiles.cut(self._n_past)

    def keep(self, path: Sequence[int]) -> None:
        session = self._open()
        check_path(path, self.pending)
        if self.states is not None:
            self.states.writes()
        moved = [(node, place) for place, node in enumerate(path) if node != place]
        if moved:
            # Each moves towards the text, so none is overwritten before it is copied.
            sources, targets = (self.tiles.cells_of(np.array(each) + self._n_past) for each in zip(*moved, strict=True))
            session.copy(sources, targets)
        self._n_past += len(path)
        self.drop_pending()

    def rollback(self, n_past: int) -> None:
        self._open()
        self._require_tokens("rollback", n_past, self._n_past)
        if self.states is not None:
            n_past = self.states.rollback(n_past, n_past=self._n_past)
        self._n_past = n_past
        self.drop_pending()

    def hold(self) -> None:
        if self.states is not None and not self.settings.exact:
            self.drop_pending()
            self.states.mark(self._n_past)

    def fork(self, n: int) -> OnnxPath:
        session = self._open()
        self._require_tokens("fork", n, self._n_past)
        fork = self._like()
        if self.states is not None:
            n = self.states.nearest(n)
            fork.states = self.states.fork(n, self._n_past + len(self.pending), self.pool.settle)
        fork.tiles, copies = self.tiles.fork(n)
        self.pool.copy_tiles(session, copies)
        fork._n_past = n
        return fork

    def _like(self) -> OnnxPath:
        """Return an empty path that follows what this one follows."""
        return self.pool.path()

    def shift(self, first: int, last: int) -> None:
        session, by = self._open(), last - first
        if self.states is not None:
            raise ValueError("states still know the tokens that would be taken out")
        self._require_tokens("shift", first, last)
        self.drop_pending()
        n_past = self._n_past - by
        # Shared cells are never turned: what moves gets cells of its own.
        self.pool.copy_tiles(session, self.pool.tiles.reserve([(self.tiles, first, n_past)]))
        targets = self.tiles.cells(first, n_past)
        session.copy(self.tiles.cells(last, self._n_past), targets)
        session.turn_back(targets, by)
        self._n_past = n_past
        self.tiles.cut(n_past)

    def save(self) -> bytes:
        session = self._open()
        self.drop_pending()
        body = session.save(self.tiles.ids, self._n_past)
        if self.states is not None:
            body += self.states.save(self._n_past, self.pool.settle)
        return pack_state(body, n_past=self._n_past, profile=self.profile.name)

    def restore(self, state: bytes) -> None:
        self.rollback(0)
        session = self._open()
        body, n_past = unpack_state(state, profile=self.profile.name, n_ctx=self.n_ctx)
        n_cells = len(body) - (self.states.n_bytes if self.states is not None else 0)
        if n_cells != session.state_bytes(n_past):
            raise StateError("the saved state is damaged", hint="read the text again instead")
        self.pool.tiles.reserve([(self.tiles, 0, n_past)])
        session.restore(body[:n_cells], self.tiles.cells(0, n_past))
        if self.states is not None:
            self.states.restore(body[n_cells:], n_past)
        self._n_past = n_past

    def cancel(self) -> None:
        self.pool.cancel()

    def resume(self) -> None:
        self.pool.resume()

    def close(self) -> None:
        self._n_past, self._closed = 0, True
        self.drop_pending()

    def _open(self) -> Session:
        if self._closed:
            raise Closed("this text")
        return self.pool.session

    def _require_tokens(self, what: str, first: int, last: int) -> None:
        """Refuse a ``what``, such as a shift, of tokens that are not there."""
        if not 0 <= first <= last <= self._n_past:
            raise ValueError(f"{what} of tokens {first} to {last} of a text of {self._n_past}")


class PathFeatures:
    """What the pool of a path keeps for heads, place by place; see ``Features``."""

    def __init__(self, features: Features, path: OnnxPath) -> None:
        self.features = features
        self._path = path

    def on(self, path: LanguageModel) -> PathFeatures:
        """Return those of another path of the pool."""
        if not isinstance(path, OnnxPath):
            raise ValueError("a text of another pool")
        return PathFeatures(self.features, path)

    def __getitem__(self, places: slice) -> npt.NDArray[Any]:
        """Return the rows of some places, ``[n, width]``."""
        return self.features[self._cells(places)]

    def save(self, n: int) -> bytes:
        """Return the rows of the first ``n`` places as they are kept."""
        return self.features.save(self._cells(slice(n)))

    def restore(self, n: int, saved: bytes) -> bool:
        """Make the first ``n`` places what was saved of as many; False if that is damaged."""
        return self.features.restore(self._cells(slice(n)), saved)

    def _cells(self, places: slice) -> npt.NDArray[np.intp]:
        return self._path.tiles.cells_of(np.arange(*places.indices(len(self._path.tiles.ids) * TILE)))


class TranscribedModel(OnnxPath):
    """A model over a transcription: the first path of its pool."""

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

    def features(self, tail: bytes, name: str, width: int, *, coarse: bool = False) -> PathFeatures:
        """See ``Session.give_features``."""
        return PathFeatures(self.pool.session.give_features(tail, name, width, coarse=coarse), self)

    def close(self) -> None:
        self.pool.close()


def _numbers_of(parts: Sequence[Part]) -> list[int]:
    """Return the graph's input ``tree``, see ``kernels/src/attention_operator.c``."""
    numbers = [len(parts)]
    for part in parts:
        n, tiles = part.n_pending, part.path.tiles.ids
        numbers += (part.path.n_past, n, len(part.tokens), len(tiles))
        numbers += range(-1, n - 1) if part.tree is None else part.tree.parents
        numbers += tiles
    return numbers


def _chunks(texts: Sequence[tuple[OnnxPath, Sequence[int]]], settings: ModelSettings) -> Iterator[list[Part]]:
    """Yield texts cut and packed into runs of as many tokens as a chunk has."""
    parts: list[Part] = []
    room = settings.prefill_chunk
    for path, tokens in texts:
        first = 0
        while first < len(tokens):
            part = tokens[first : first + room]
            # As many rows can be taken back as those of a decode.
            parts.append(Part(path, part, n_read=max(0, len(part) - settings.max_rows + 1)))
            first, room = first + len(part), room - len(part)
            if room == 0:
                yield parts
                parts, room = [], settings.prefill_chunk
    if parts:
        yield parts
