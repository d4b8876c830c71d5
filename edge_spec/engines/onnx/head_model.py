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

from edge_spec.engines.onnx.kv_cache import BoundCache
from edge_spec.engines.onnx.pool import OnnxPath, OnnxPool, Part, PathFeatures, TranscribedModel
from edge_spec.engines.onnx.session import Session
from edge_spec.engines.onnx.transcription.head import FEATURE, HIDDEN, Head
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import StateError
from edge_spec.speculation.language_model import ANYWHERE, Capabilities, Logits, NumericsProfile
from edge_spec.speculation.pool import Path

__all__ = ["HeadModel", "HeadPath", "HeadSession"]


class HeadSession(Session):
    """A session over a head.

    Attributes:
        taken: f32 ``[prefill_chunk, width]``, features to be filled in before a run like ``ids``.
        hidden: f32 ``[prefill_chunk, width]``: what the last run gave for drafted tokens after its own.
    """

    def __init__(self, head: Head, settings: ModelSettings) -> None:
        self.taken = np.zeros((settings.prefill_chunk, head.width), np.float32)
        self.hidden = np.zeros((settings.prefill_chunk, head.width), np.float32)
        super().__init__(head, settings)

    def _bind(self) -> BoundCache:
        taken, given = {FEATURE: self.taken}, {HIDDEN: self.hidden}
        return BoundCache(self._cache, self.ids, self._rows, self._logits, taken=taken, given=given)


class HeadPool(OnnxPool):
    """The cells of a head.

    Args:
        features: the target's.
    """

    def __init__(
        self,
        session: HeadSession,
        settings: ModelSettings,
        *,
        name: str,
        target: TranscribedModel,
        features: PathFeatures,
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
        self.target, self.features = target, features
        self.width = session.hidden.shape[1]

    def path(self, target: Path | None = None) -> HeadPath:
        return HeadPath(self, self.target if target is None else target)

    def _compute(self, parts: Sequence[Part], rows: range) -> Logits:
        session, is_draft = self.session, len(rows) == sum(len(part.tokens) for part in parts)
        assert isinstance(session, HeadSession)
        ends = np.cumsum([len(part.tokens) for part in parts]).tolist()
        for part, end in zip(parts, ends, strict=True):
            assert isinstance(part.path, HeadPath)
            part.path.fill(part, session.taken[end - len(part.tokens) : end], is_draft=is_draft)
        logits = super()._compute(parts, rows)
        for part, end in zip(parts, ends, strict=True):
            if is_draft and isinstance(part.path, HeadPath):
                part.path.given[part.first : part.n_pending] = session.hidden[end - len(part.tokens) : end]
        return logits


class HeadPath(OnnxPath):
    """A text of a head. It must follow the text that its target follows, and never be ahead of it by more than a draft.

    Attributes:
        given: what the head gave for each pending node.
    """

    pool: HeadPool

    def __init__(self, pool: HeadPool, target: Path) -> None:
        super().__init__(pool)
        self._target = target
        self._features = pool.features.on(target)
        self.given: npt.NDArray[np.float32] = np.zeros((2 * pool.settings.max_rows, pool.width), np.float32)
        # How many of the pending nodes, from the first on, are tokens of the text.
        self._n_of_text = 0

    def fill(self, part: Part, features: npt.NDArray[np.float32], *, is_draft: bool) -> None:
        """Fill in what the tokens of a part need of those before them."""
        first, n = part.first, len(part.tokens)
        # The target has computed what comes before these; drafts begin behind the text, which it is never ahead of.
        self._n_of_text = max(0, self._target.n_past + 1 - self.n_past)
        known = min(max(0, self._n_of_text - first), n)
        begin = self.n_past + first - 1
        if begin < 0 or known < n:
            features[:n] = 0
        if known:
            features[max(0, -begin) : known] = self._features[max(0, begin) : begin + known]
        if is_draft:
            parents = range(-1, first + n) if part.tree is None else part.tree.parents
            for row in range(known, n):
                if (parent := parents[first + row]) >= 0:
                    features[row] = self.given[parent]

    def keep(self, path: Sequence[int]) -> None:
        super().keep([node for node in path if node < self._n_of_text])

    def save(self) -> bytes:
        # All features, since those of the target are not saved with its cells.
        n = self._target.n_past
        return _SAVED.pack(n) + self._features.save(n) + super().save()

    def restore(self, state: bytes) -> None:
        self.rollback(0)
        if len(state) < _SAVED.size:
            raise _damaged()
        (n,) = _SAVED.unpack_from(state)
        end = _SAVED.size + n * self.pool.features.features.cell_bytes
        if n > self._target.n_ctx or len(state) < end:
            raise _damaged()
        # First, since where its own cells lack it reads the text again.
        if n == self._target.n_past and not self._features.restore(n, state[_SAVED.size : end]):
            raise _damaged()
        super().restore(state[end:])

    def _like(self) -> HeadPath:
        return self.pool.path(self._target)


class HeadModel(HeadPath):
    """See ``LanguageModel``; the first path of its pool.

    Args:
        target: its target.
        features: the target's, place by place; dropped when the head is closed.
    """

    def __init__(
        self,
        session: HeadSession,
        settings: ModelSettings,
        *,
        name: str,
        target: TranscribedModel,
        features: PathFeatures,
    ) -> None:
        super().__init__(HeadPool(session, settings, name=name, target=target, features=features), target)

    def close(self) -> None:
        self.pool.close()
        self.pool.target.pool.drop_features(self.pool.features.features)


_SAVED = struct.Struct("<Q")
"""Before a saved cache: of how many places of the target's text the features follow."""


def _damaged() -> StateError:
    return StateError("the saved state is damaged", hint="read the text again instead")
