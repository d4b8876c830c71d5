"""What pools do alike on every engine: check what is asked, count tokens, and translate a trimmed vocabulary."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, NamedTuple, Self, TypeVar

from edge_spec.engines.settings import ModelSettings, ThreadCounts
from edge_spec.errors import Closed, ContextFull
from edge_spec.speculation.cache_state import pack_state, unpack_state
from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.pool import Path
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["CachedPath", "CachedPool", "Part"]

P = TypeVar("P", bound="CachedPath[Any]")
Q = TypeVar("Q", bound="CachedPool[Any]")


class Part(NamedTuple, Generic[P]):
    """The tokens of a run that belong to one path.

    Attributes:
        first: nodes that are pending already, in the cells after the text.
        tree: all pending nodes, those of this run included; None while a prompt is read, where each token is the parent
            of the next.
        n_read: how many of the tokens are committed with the run, so that states take them in.
    """

    path: P
    tokens: Sequence[int]
    first: int = 0
    tree: Tree | None = None
    n_read: int = 0

    @property
    def n_pending(self) -> int:
        """All pending nodes, those of this run included."""
        return self.first + len(self.tokens)

    @property
    def start(self) -> int:
        """How many tokens come before these: committed ones, and pending nodes."""
        return self.path.n_past + self.first


class CachedPool(ABC, Generic[P]):
    """The part of a ``Pool`` that is the same on every engine.

    Attributes:
        settings: those that it was opened with.
        n_ids: how many ids of tokens it reads, which may be more than it has logits of.
        threads: how many threads compute. They can be changed where bits do not depend on it.
    """

    _most_paths = sys.maxsize

    def __init__(
        self, settings: ModelSettings, *, n_vocab: int, profile: NumericsProfile, capabilities: Capabilities
    ) -> None:
        self.settings = settings
        self.n_vocab, self.n_ids, self.n_ctx = n_vocab, n_vocab, settings.n_ctx
        self.profile, self.capabilities = profile, capabilities
        self.threads: ThreadCounts = settings.thread_counts
        self.kept: KeptTokens | None = None

    @property
    def max_paths(self) -> int:
        return self._most_paths if self.capabilities.in_company else 1

    def trim(self, kept: KeptTokens) -> None:
        """See ``Pool``."""
        smallest, largest = int(kept.own_ids.min()), int(kept.own_ids.max())
        if smallest < 0 or largest >= self.n_ids:
            raise ValueError(f"a model of {self.n_ids} tokens, and its own id {largest}")
        self.kept, self.n_vocab = kept, len(kept)

    @abstractmethod
    def path(self, like: Path | None = None) -> P:
        """See ``Pool``."""

    def decode(self, trees: Sequence[tuple[Path, Tree]]) -> list[Logits]:
        given = [(self._mine(path), self._known_tree(tree)) for path, tree in trees]
        _require_distinct([path for path, _ in given])
        parts = [path.part_of(tree) for path, tree in given]
        ends = [*accumulate(len(part.tokens) for part in parts)]
        if ends[-1] > self.settings.max_rows:
            raise ValueError(f"{ends[-1]} rows in one decode; from 1 to {self.settings.max_rows} are possible")
        self._reserve(parts)
        # Should the run fail, nothing is pending any more.
        for path, _ in given:
            path.pending = EMPTY
        try:
            rows = self._compute(parts, is_decode=True)
        except BaseException:
            for path, _ in given:
                path.drop_pending()
            raise
        for path, tree in given:
            path.pending = tree
        if self.kept is not None:
            rows = rows[:, self.kept.picked]
        return [rows[first:end] for first, end in zip([0, *ends], ends, strict=False)]

    def prefill(self, texts: Sequence[tuple[Path, Sequence[int]]]) -> None:
        given = [(self._mine(path), self._known(tokens)) for path, tokens in texts]
        _require_distinct([path for path, _ in given])
        for path, tokens in given:
            path.require_room(len(tokens))
        for path, _ in given:
            path.drop_pending()
        self._reserve([Part(path, tokens) for path, tokens in given])
        for path, _ in given:
            path.reads()
        try:
            for parts in self._chunks(given):
                self._compute(parts, is_decode=False)
                for part in parts:
                    part.path.read(len(part.tokens))
        except BaseException:
            for path, _ in given:
                # Some layers may have taken in what others have not.
                path.rollback(path.n_past)
            raise
        for path, _ in given:
            path.drop_pending()

    def _chunks(self, texts: Sequence[tuple[P, Sequence[int]]]) -> Iterator[list[Part[P]]]:
        """Yield texts cut and packed into runs of as many tokens as a chunk has."""
        parts: list[Part[P]] = []
        room = self.settings.prefill_chunk
        for path, tokens in texts:
            first = 0
            while first < len(tokens):
                part = tokens[first : first + room]
                # As many rows can be taken back as those of a decode.
                parts.append(Part(path, part, n_read=max(0, len(part) - self.settings.max_rows + 1)))
                first, room = first + len(part), room - len(part)
                if room == 0:
                    yield parts
                    parts, room = [], self.settings.prefill_chunk
        if parts:
            yield parts

    @abstractmethod
    def _reserve(self, parts: Sequence[Part[P]]) -> None:
        """Have cells for the pending nodes of some parts; raises ``PoolFull`` and changes nothing if there are none."""

    @abstractmethod
    def _compute(self, parts: Sequence[Part[P]], *, is_decode: bool) -> Logits:
        """Compute the tokens of some parts; returns a row for each of a decode, of a prompt whatever there is."""

    def _known_tree(self, tree: Tree) -> Tree:
        return tree if self.kept is None else Tree(tuple(self._known(tree.tokens)), tree.parents)

    def _known(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the model's own ids of tokens: one stands for all that are not kept."""
        return tokens if self.kept is None else self.kept.own_ids[list(tokens)].tolist()

    def _mine(self, path: Path) -> P:
        own: object = self
        if path.pool is not own:
            raise ValueError("a text of another pool")
        # What is a path of this pool was made by it.
        return path  # type: ignore[return-value]

    @abstractmethod
    def require_open(self) -> None:
        """Raise ``Closed`` if it is."""

    @abstractmethod
    def cancel(self) -> None:
        """See ``Pool``."""

    @abstractmethod
    def resume(self) -> None:
        """See ``Pool``."""

    @abstractmethod
    def close(self) -> None:
        """See ``Pool``."""


class CachedPath(ABC, Generic[Q]):
    """The part of a ``Path`` that is the same on every engine.

    Attributes:
        pool: the pool that its cells are of.
        pending: what has been decoded and neither kept nor rolled back.
    """

    def __init__(self, pool: Q) -> None:
        self.pool = pool
        self.pending: Tree = EMPTY
        self._n_past = 0
        self._closed = False

    @property
    def n_past(self) -> int:
        return self._n_past

    @property
    def settings(self) -> ModelSettings:
        """The settings that its pool was opened with."""
        return self.pool.settings

    @property
    def n_vocab(self) -> int:
        return self.pool.n_vocab

    @property
    def kept(self) -> KeptTokens | None:
        return self.pool.kept

    @property
    def n_ctx(self) -> int:
        return self.pool.n_ctx

    @property
    def capabilities(self) -> Capabilities:
        return self.pool.capabilities

    @property
    def profile(self) -> NumericsProfile:
        return self.pool.profile

    # --- computing

    def prefill(self, tokens: Sequence[int]) -> None:
        self.pool.prefill([(self, tokens)])  # type: ignore[list-item]

    def decode(self, tree: Tree) -> Logits:
        return self.pool.decode([(self, tree)])[0]  # type: ignore[list-item]

    def part_of(self, tree: Tree) -> Part[Self]:
        """Return what has to be computed of a tree; refuses one that cannot be decoded."""
        first, pending = len(self.pending), self.pending
        n, most = len(tree) - first, self.settings.max_rows
        if not 1 <= n <= most:
            raise ValueError(f"{n} rows in one decode; from 1 to {most} are possible")
        if first and (tree.tokens[:first], tree.parents[:first]) != (pending.tokens, pending.parents):
            raise ValueError("a tree can only be grown: its first nodes must be the pending ones")
        self.require_room(len(tree), drafts=True)
        if not (tree.is_sequence or self.settings.trees):
            raise ValueError("this model takes sequences, not trees")
        return Part(self, tree.tokens[first:], first, tree)

    def require_room(self, n_new: int, *, drafts: bool = False) -> None:
        """Refuse tokens that do not fit after the text; drafts may extend beyond the context."""
        self.require_open()
        if self._n_past + n_new > self.n_ctx + drafts * self.settings.max_rows:
            raise ContextFull(n_past=self._n_past, n_new=n_new, n_ctx=self.n_ctx)

    def reads(self) -> None:
        """A prompt is being read, from here on if none was read before."""

    def read(self, n: int) -> None:
        """So many tokens, which have been computed, are committed."""
        self._n_past += n

    # --- going on, and back

    @abstractmethod
    def drop_pending(self) -> None:
        """Forget the pending tree, and give back the cells after the text."""

    def keep(self, path: Sequence[int]) -> None:
        self.require_open()
        for above, node in zip([-1, *path], path, strict=False):
            if self.pending.parents[node] != above:
                raise ValueError(f"{list(path)} is not a path down the pending tree")
        self._n_past += self._moved_up(path)
        self.drop_pending()

    def _moved_up(self, path: Sequence[int]) -> int:
        """Have the cells of a pending path after those of the text; returns of how many of its nodes that is so."""
        return len(path)

    def rollback(self, n_past: int) -> None:
        self.require_open()
        self._require_tokens("rollback", n_past, self._n_past)
        self._n_past = self._gone_back(n_past)
        self.drop_pending()

    def _gone_back(self, n_past: int) -> int:
        """Go back to so many tokens, or to fewer where a model keeps states; returns to how many."""
        return n_past

    def fork(self, n: int) -> Self:
        self.require_open()
        self._require_tokens("fork", n, self._n_past)
        fork, fork_n_past = self._forked(n)
        fork._n_past = fork_n_past
        return fork

    @abstractmethod
    def _forked(self, n: int) -> tuple[Self, int]:
        """Return a path with the cells of the first ``n`` tokens, or of fewer where a model keeps states; how many."""

    def hold(self) -> None:
        """Nothing has to be done where a cache can go back anywhere."""

    def shift(self, first: int, last: int) -> None:
        self.require_open()
        self.drop_pending()
        self._require_tokens("shift", first, last)
        n_past = self._n_past - (last - first)
        self._take_out(first, last)
        self._n_past = n_past

    @abstractmethod
    def _take_out(self, first: int, last: int) -> None:
        """Take out cells, and move those after them up."""

    def _require_tokens(self, what: str, first: int, last: int) -> None:
        """Refuse a ``what``, such as a shift, of tokens that are not there."""
        if not 0 <= first <= last <= self._n_past:
            raise ValueError(f"{what} of tokens {first} to {last} of a text of {self._n_past}")

    # --- saving

    def save(self) -> bytes:
        self.require_open()
        self.drop_pending()
        return pack_state(self._write(), n_past=self._n_past, profile=self.profile.name)

    @abstractmethod
    def _write(self) -> bytes:
        """Return the committed cells."""

    def restore(self, state: bytes) -> None:
        self.rollback(0)
        body, n_past = unpack_state(state, profile=self.profile.name, n_ctx=self.n_ctx)
        self._read(body, n_past)
        self._n_past = n_past

    @abstractmethod
    def _read(self, body: bytes, n_past: int) -> None:
        """Fill the cells of so many tokens with what ``_write`` returned.

        Raises:
            PoolFull: there are too few. StateError: they are damaged. There are no cells then.
        """

    # --- ending

    def require_open(self) -> None:
        """Raise ``Closed`` if it is, or its pool."""
        if self._closed:
            raise Closed("this text")
        self.pool.require_open()

    def close(self) -> None:
        self._closed, self._n_past = True, 0
        self.drop_pending()


def _require_distinct(paths: Sequence[object]) -> None:
    """Refuse a decode in which a text comes twice."""
    if len(paths) > 1 and len({id(path) for path in paths}) < len(paths):
        raise ValueError("a text comes twice in one decode")
