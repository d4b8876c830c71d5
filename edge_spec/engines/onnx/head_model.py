"""A head on a target's hidden states as a model of its own, which the drafters for models drive as it is.

Each of its tokens needs the *feature* of the token before it. That of a token of the text comes from the target, which
has computed the token before; that of a drafted token is what the head itself gave for the one before. Cells of the
second kind are good guesses only: ``keep`` leaves them out, and the next decode computes these tokens again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.features import Features
from edge_spec.engines.onnx.pool import OnnxPath, OnnxPool, PathFeatures
from edge_spec.engines.onnx.session import Session
from edge_spec.engines.onnx.transcription.head import EMBEDDING, FEATURE, HIDDEN, Head
from edge_spec.engines.pool import Part
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import StateError
from edge_spec.speculation.language_model import ANYWHERE, Capabilities, Logits, NumericsProfile
from edge_spec.speculation.pool import Path

__all__ = ["HeadPath", "HeadPool", "HeadSession"]


class HeadSession(Session):
    """A session over a head.

    Attributes:
        n_ids: how many ids it reads.
        taken: f32 ``[prefill_chunk, width]``, features to be filled in before a run like ``ids``.
        hidden: f32 ``[prefill_chunk, width]``: what the last run gave for drafted tokens after its own.
    """

    _looked_up_as = EMBEDDING

    def __init__(self, head: Head, settings: ModelSettings) -> None:
        self.n_ids = head.n_ids
        self.taken = np.zeros((settings.prefill_chunk, head.width), np.float32)
        self.hidden = np.zeros((settings.prefill_chunk, head.width), np.float32)
        super().__init__(head, settings)

    def _taken(self) -> dict[str, npt.NDArray[np.float32]]:
        return {**super()._taken(), FEATURE: self.taken}

    def _given(self) -> dict[str, npt.NDArray[np.float32]]:
        return {HIDDEN: self.hidden}


class HeadPool(OnnxPool):
    """The cells of a head.

    Args:
        target: the pool of the model that the head drafts for.
        features: the target's hidden states that are kept for the head; dropped when the head is closed.
    """

    def __init__(
        self,
        session: HeadSession,
        settings: ModelSettings,
        *,
        name: str,
        target: OnnxPool,
        features: Features,
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
        self.n_ids = session.n_ids
        self.features, self.width = features, session.hidden.shape[1]
        self._target = target

    def path(self, like: Path | None = None) -> HeadPath:
        if not isinstance(like, OnnxPath) or like.pool is not self._target:
            raise ValueError("a head follows a text of its target")
        return HeadPath(self, like)

    def _compute(self, parts: Sequence[Part[OnnxPath]], *, is_decode: bool) -> Logits:
        session, end, of_heads = self.session, 0, list[tuple[HeadPath, Part[OnnxPath], slice]]()
        assert isinstance(session, HeadSession)
        for part in parts:
            assert isinstance(part.path, HeadPath)
            first, end = end, end + len(part.tokens)
            of_heads.append((part.path, part, slice(first, end)))
            part.path.fill(part, session.taken[first:end], is_draft=is_decode)
        logits = super()._compute(parts, is_decode=is_decode)
        if is_decode:
            for path, part, rows in of_heads:
                path.given[part.first : part.n_pending] = session.hidden[rows]
        return logits

    def close(self) -> None:
        super().close()
        self._target.drop_features(self.features)


class HeadPath(OnnxPath):
    """A text of a head. It must follow the text that its target follows, and never be ahead of it by more than a draft.

    Attributes:
        given: what the head gave for each pending node.
    """

    pool: HeadPool

    def __init__(self, pool: HeadPool, target: OnnxPath) -> None:
        super().__init__(pool)
        self._target = target
        self._features = PathFeatures(pool.features, target)
        self.given: npt.NDArray[np.float32] = np.zeros((2 * pool.settings.max_rows, pool.width), np.float32)
        # How many of the pending nodes, from the first on, are tokens of the text.
        self._n_of_text = 0

    def fill(self, part: Part[OnnxPath], features: npt.NDArray[np.float32], *, is_draft: bool) -> None:
        """Fill in what the tokens of a part need of those before them."""
        first, n = part.first, len(part.tokens)
        # The target has computed the features of all tokens before these; drafts begin after its text.
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
        end = _SAVED.size + n * self.pool.features.cell_bytes
        if n > self._target.n_ctx or len(state) < end:
            raise _damaged()
        # First, since where its own cells lack it reads the text again.
        if n == self._target.n_past and not self._features.restore(n, state[_SAVED.size : end]):
            raise _damaged()
        super().restore(state[end:])

    def _like(self) -> Self:
        return type(self)(self.pool, self._target)


_SAVED = struct.Struct("<Q")
"""Before a saved cache: of how many places of the target's text the features follow."""


def _damaged() -> StateError:
    return StateError("the saved state is damaged", hint="read the text again instead")
