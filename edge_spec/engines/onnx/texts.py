"""Several texts in one decode of a transcription."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.features import Features
from edge_spec.engines.onnx.kv_cache import BoundCache
from edge_spec.engines.onnx.model import OnnxModel
from edge_spec.engines.onnx.session import Session
from edge_spec.engines.onnx.transcription.graph import LANES
from edge_spec.errors import Closed, ContextFull
from edge_spec.memory.usage import trim_heap
from edge_spec.speculation.language_model import Logits

__all__ = ["OnnxTexts", "TranscribedModel"]


class TranscribedModel(OnnxModel):
    """A model over a transcription: our attention can tell rows of several texts apart. See ``TextsModel``."""

    @property
    def most_texts(self) -> int:
        """How many texts one decode can advance; 1 where rows round differently from width to width."""
        return self.capabilities.max_rows if self.capabilities.widths else 1

    def texts_bytes(self, n_slots: int, n_tokens: int) -> int:
        """Return what the cache of ``texts`` takes."""
        return n_slots * _cells(n_tokens) * self.session.cell_bytes

    def texts(self, n_slots: int, n_tokens: int, *, hidden: bool = False) -> OnnxTexts:
        """Return an empty cache for texts of at most ``n_tokens`` each."""
        return OnnxTexts(self, n_slots, min(n_tokens, self.n_ctx), hidden=hidden)

    def features(self, tail: bytes, name: str, width: int, *, coarse: bool = False) -> Features:
        """See ``Session.give_features``."""
        return self.session.give_features(tail, name, width, coarse=coarse)

    def drop_features(self, features: Features) -> None:
        """Free them. Safe to call twice, and after the model was closed."""
        if self._session is not None:
            self.session.drop_features(features)

    @property
    def session(self) -> Session:
        """What computes; only for as long as the model is open."""
        session = self._open()
        assert isinstance(session, Session)
        return session


class OnnxTexts:
    """See ``Texts``. A slot is a run of cells; the tokens of its text are in order in the first of them."""

    def __init__(self, model: TranscribedModel, n_slots: int, n_tokens: int, *, hidden: bool) -> None:
        self.n_slots = n_slots
        self._model = model
        self._n_tokens = n_tokens
        self._slot_cells = _cells(n_tokens)
        n_cells = n_slots * self._slot_cells
        self._bound: BoundCache | None = model.session.new_cache(n_cells)
        self._features = model.session.new_features(n_cells) if hidden else None
        self._lengths = [0] * n_slots

    def read(self, slot: int, tokens: Sequence[int]) -> None:
        before = self._lengths[slot]
        self._require_room(slot, len(tokens))
        settings = self._model.settings
        for start in range(0, len(tokens), settings.prefill_chunk):
            chunk = tokens[start : start + settings.prefill_chunk]
            n = len(chunk)
            places = np.arange(before + start, before + start + n, dtype=np.int32)
            self._run(chunk, np.full(n, slot, np.int32), places, range(n - 1, n))
            if n > settings.max_rows:
                trim_heap()
        self._lengths[slot] += len(tokens)

    def decode(self, tokens: Mapping[int, int]) -> Logits:
        slots = sorted(tokens)
        order = [slots.index(slot) for slot in tokens]
        for slot in slots:
            self._require_room(slot, 1)
        places = np.array([self._lengths[slot] for slot in slots], np.int32)
        rows = self._run([tokens[slot] for slot in slots], np.array(slots, np.int32), places, range(len(slots)))
        for slot in slots:
            self._lengths[slot] += 1
        return rows[order]

    def copy(self, source: int, slot: int, n: int) -> None:
        self._require_tokens(source, n)
        if source != slot:
            first, last = source * self._slot_cells, slot * self._slot_cells
            self._open().cache.copy(first, last, n)
            if self._features is not None:
                self._features[last : last + n] = self._features[first : first + n]
        self._lengths[slot] = n

    def rollback(self, slot: int, n: int) -> None:
        self._require_tokens(slot, n)
        self._lengths[slot] = n

    def hidden_rows(self, slot: int) -> npt.NDArray[Any]:
        if self._features is None:
            raise ValueError("this cache was not asked to keep hidden states")
        first = slot * self._slot_cells
        return self._features[first : first + self._lengths[slot]]

    def close(self) -> None:
        bound, self._bound = self._bound, None
        if bound is not None:
            bound.close()

    def _run(
        self, tokens: Sequence[int], slots: npt.NDArray[np.int32], places: npt.NDArray[np.int32], wanted: range
    ) -> Logits:
        """Compute a token at each of some places; returns the rows that are wanted."""
        n, bound = len(tokens), self._open()
        n_run = self._model.capabilities.padded(n)
        bound.ids[:n], bound.ids[n:n_run] = tokens, tokens[-1]
        texts = np.unique(slots)
        numbers, n_tiles = [len(texts)], self._slot_cells // LANES
        for slot in texts:
            first, n_rows = int(places[slots == slot][0]), int((slots == slot).sum())
            tiles = range(slot * n_tiles, (slot + 1) * n_tiles)
            numbers += [first, n_rows, n_rows, n_tiles, *range(-1, n_rows - 1), *tiles]
        tree = np.array(numbers, np.int32)
        logits = bound.run(self._model.session, tree, n_run, wanted)
        if self._features is not None:
            self._features.keep(slots * self._slot_cells + places, n)
        return logits

    def _require_room(self, slot: int, n_new: int) -> None:
        if self._lengths[slot] + n_new > self._n_tokens:
            raise ContextFull(n_past=self._lengths[slot], n_new=n_new, n_ctx=self._n_tokens)

    def _require_tokens(self, slot: int, n: int) -> None:
        if not 0 <= n <= self._lengths[slot]:
            raise ValueError(f"{n} tokens of a text of {self._lengths[slot]}")

    def _open(self) -> BoundCache:
        if self._bound is None:
            raise Closed("the cache of several texts")
        return self._bound


def _cells(n_tokens: int) -> int:
    """Cells of a slot: a text begins with a tile of keys."""
    return n_tokens + -n_tokens % LANES
