"""A language model on ONNX Runtime: one session, one KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge_spec.engines.cache_state import CachedModel, check_path, n_new_nodes, pack_state, unpack_state
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import Closed, StateError
from edge_spec.memory.usage import trim_heap
from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["Cells", "Computation", "OnnxModel", "Place"]

Cells = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tokens of a run go.

    Attributes:
        n_text: committed cells, which every token sees.
        first: pending nodes that are in the cache already, in the cells after the text.
        n_run: tokens of this run, padding included, in the cells after those.
        tree: all pending nodes, those of this run included; None if each is the parent of the next.
    """

    n_text: int
    first: int
    n_run: int
    tree: Tree | None = None


class Computation(Protocol):
    """A graph with its cache: a session over a transcription, or over a published model.

    Attributes:
        ids: tokens, to be filled before a run.
        pads_logits: whether logits of padding must be computed as well for the other rows to round as they should.
    """

    n_vocab: int
    pads_logits: bool
    ids: npt.NDArray[Any]

    def run(self, place: Place, rows: range) -> Logits:
        """Compute ``ids[:place.n_run]``; returns logits ``[rows, n_vocab]``, valid until the next run."""

    def move(self, sources: Cells, targets: Cells) -> None:
        """Copy cells of the cache, all at once."""

    def shift(self, first: int, last: int, n_past: int) -> None:
        """Move the cells from ``last`` to ``n_past`` to ``first``, as cells of earlier positions."""

    def save(self, n: int) -> bytes:
        """Return the first ``n`` cells."""

    def restore(self, body: bytes, n: int) -> bool:
        """Bring ``n`` cells back; False if there are too many or too few bytes."""

    def cancel(self) -> None:
        """Make a run in progress, or else the next one, raise ``Cancelled``."""

    def resume(self) -> None:
        """Forget a ``cancel``."""

    def close(self) -> None:
        """Free the library's part; the arrays go with this object. Safe to call twice."""


class OnnxModel(CachedModel):
    """A graph with a cache; see ``LanguageModel`` for what its methods promise.

    The cells of the committed text are the first ``n_past`` of the cache, in order, and the nodes of a pending tree
    follow them in theirs. So a rollback only lowers a count, and keeping a side branch moves its cells up to the text.

    Args:
        session: has room for ``settings.n_cells`` tokens. Nothing else may hold it: its memory is freed when this
            model is closed, even while the model itself is still referred to.
    """

    def __init__(
        self,
        session: Computation,
        settings: ModelSettings,
        *,
        name: str,
        profile: NumericsProfile,
        capabilities: Capabilities,
    ) -> None:
        super().__init__(settings, session.n_vocab, profile, capabilities)
        self._session: Computation | None = session
        self._name = name

    def prefill(self, tokens: Sequence[int]) -> None:
        session = self._open()
        self._require_room(len(tokens))
        self._pending = EMPTY
        for start in range(0, len(tokens), self.settings.prefill_chunk):
            chunk = tokens[start : start + self.settings.prefill_chunk]
            n = len(chunk)
            place = Place(self._n_past, 0, self.capabilities.padded(n))
            self._run(session, chunk, place, range(n - 1, n))
            self._n_past += n
            if n > self.settings.max_rows:
                # What the runtime gives back the C library keeps in fragments, more with every chunk.
                trim_heap()

    def decode(self, tree: Tree) -> Logits:
        first = len(self._pending)
        n = n_new_nodes(tree, self._pending, max_rows=self.settings.max_rows)
        session = self._open()
        self._require_room(len(tree), drafts=True)
        if not (tree.is_sequence or self.settings.trees):
            raise ValueError("this model takes sequences, not trees")
        n_run = self.capabilities.padded(n)
        wanted = n_run if session.pads_logits else n
        # Should the run fail, nothing is pending any more.
        self._pending = EMPTY
        place = Place(self._n_past, first, n_run, None if tree.is_sequence else tree)
        rows = self._run(session, tree.tokens[first:], place, range(wanted))
        self._pending = tree
        return rows[:n]

    def _run(self, session: Computation, tokens: Sequence[int], place: Place, rows: range) -> Logits:
        """Compute tokens, padded at the end: what is computed there is overwritten by the next run."""
        session.ids[: len(tokens)] = tokens
        session.ids[len(tokens) : place.n_run] = tokens[-1]
        return session.run(place, rows)

    def keep(self, path: Sequence[int]) -> None:
        session = self._open()
        check_path(path, self._pending)
        moved = [(place, node) for place, node in enumerate(path) if node != place]
        if moved:
            targets, sources = (np.array(cells) + self._n_past for cells in zip(*moved, strict=True))
            session.move(sources, targets)
        self._n_past += len(path)
        self._pending = EMPTY

    def rollback(self, n_past: int) -> None:
        self._open()
        self._require_tokens("rollback", n_past, self._n_past)
        self._pending = EMPTY
        self._n_past = n_past

    def shift(self, first: int, last: int) -> None:
        session = self._open()
        self._require_tokens("shift", first, last)
        self._pending = EMPTY
        session.shift(first, last, self._n_past)
        self._n_past -= last - first

    def save(self) -> bytes:
        session = self._open()
        self._pending = EMPTY
        return pack_state(session.save(self._n_past), n_past=self._n_past, profile=self.profile.name)

    def restore(self, state: bytes) -> None:
        session = self._open()
        self.rollback(0)
        body, n_past = unpack_state(state, profile=self.profile.name, n_ctx=self.n_ctx)
        if not session.restore(body, n_past):
            raise StateError("the saved state is damaged", hint="read the text again instead")
        self._n_past = n_past

    def cancel(self) -> None:
        if self._session is not None:
            self._session.cancel()

    def resume(self) -> None:
        if self._session is not None:
            self._session.resume()

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _open(self) -> Computation:
        if self._session is None:
            raise Closed(f"the model {self._name}")
        return self._session
