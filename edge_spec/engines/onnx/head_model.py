"""A head on a target's hidden states as a language model of its own, which the drafters for models drive as it is.

Each of its tokens needs the *feature* of the token before it. That of a token of the text comes from the target, which
has computed the token before; that of a drafted token is what the head itself gave for the one before. Cells of the
second kind are good guesses only: ``keep`` leaves them out, and the next decode computes these tokens again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.features import Features
from edge_spec.engines.onnx.kv_cache import BoundCache, KVCache
from edge_spec.engines.onnx.model import Computation, OnnxModel, Place
from edge_spec.engines.onnx.session import Session
from edge_spec.engines.onnx.texts import TranscribedModel
from edge_spec.engines.onnx.transcription.head import FEATURE, HIDDEN, Head
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import StateError
from edge_spec.speculation.language_model import ANYWHERE, Capabilities, Logits, NumericsProfile

__all__ = ["HeadModel", "HeadSession"]


class HeadSession(Session):
    """A session over a head.

    Attributes:
        features: f32 ``[prefill_chunk, width]``, to be filled before a run like ``ids``.
        hidden: f32 ``[prefill_chunk, width]``: what the last run gave for drafted tokens after its own.
    """

    def __init__(self, head: Head, settings: ModelSettings) -> None:
        self.features = np.zeros((settings.prefill_chunk, head.width), np.float32)
        self.hidden = np.zeros((settings.prefill_chunk, head.width), np.float32)
        super().__init__(head, settings)

    def _bind(self, cache: KVCache) -> BoundCache:
        taken, given = {FEATURE: self.features}, {HIDDEN: self.hidden}
        return BoundCache(cache, self.ids, self._rows, self._logits, taken=taken, given=given)


class HeadModel(OnnxModel):
    """See ``LanguageModel``. It must follow the text that its target follows, and never be ahead of it by more than a
    draft.

    Args:
        target: its target.
        features: the target's, cell by cell; dropped when the head is closed.
    """

    def __init__(
        self, session: HeadSession, settings: ModelSettings, *, name: str, target: TranscribedModel, features: Features
    ) -> None:
        super().__init__(
            session,
            settings,
            name=name,
            profile=NumericsProfile(engine="onnx", facts=(("head", name), ("n_ctx", str(settings.n_ctx)))),
            capabilities=Capabilities(
                rollback=ANYWHERE,
                takes_trees=True,
                widths=(),
                max_rows=settings.max_rows,
                prefill_chunk=settings.prefill_chunk,
            ),
        )
        self._target = target
        self._features = features
        self._width = session.hidden.shape[1]
        # What the head gave for each pending node, and how many of these, from the first on, are tokens of the text.
        self._given: npt.NDArray[np.float32] = np.zeros((settings.n_cells - settings.n_ctx, self._width), np.float32)
        self._n_of_text = 0

    def _run(self, session: Computation, tokens: Sequence[int], place: Place, rows: range) -> Logits:
        assert isinstance(session, HeadSession)
        first, n = place.first, len(tokens)
        # The target has computed what comes before these; drafts begin behind the text, which it is never ahead of.
        self._n_of_text = max(0, self._target.n_past + 1 - place.n_text)
        known = min(max(0, self._n_of_text - first), n)
        begin = place.n_text + first - 1
        if begin < 0 or known < n:
            session.features[:n] = 0
        if known:
            session.features[max(0, -begin) : known] = self._features.of(max(0, begin), begin + known)
        is_draft = len(rows) == n
        if is_draft:
            parents = range(-1, first + n) if place.tree is None else place.tree.parents
            for row in range(known, n):
                if (parent := parents[first + row]) >= 0:
                    session.features[row] = self._given[parent]
        logits = super()._run(session, tokens, place, rows)
        if is_draft:
            self._given[first : first + n] = session.hidden[:n]
        return logits

    def keep(self, path: Sequence[int]) -> None:
        super().keep([node for node in path if node < self._n_of_text])

    def save(self) -> bytes:
        first, last = max(0, self._n_past - 1), self._target.n_past
        return _SAVED.pack(first, last) + self._features[first:last].tobytes() + super().save()

    def restore(self, state: bytes) -> None:
        self.rollback(0)
        if len(state) < _SAVED.size:
            raise _damaged()
        first, last = _SAVED.unpack_from(state)
        end = _SAVED.size + 2 * self._width * max(0, last - first)
        if not first <= last <= self._target.n_ctx or len(state) < end:
            raise _damaged()
        rows = np.frombuffer(state[_SAVED.size : end], np.float16)
        if not np.isfinite(rows).all():
            raise _damaged()
        super().restore(state[end:])
        if last == self._target.n_past:
            self._features[first:last] = rows.reshape(last - first, self._width)

    def close(self) -> None:
        super().close()
        self._target.drop_features(self._features)


_SAVED = struct.Struct("<QQ")
"""Before a saved cache: of which cells of the target the features follow."""


def _damaged() -> StateError:
    return StateError("the saved state is damaged", hint="read the text again instead")
