"""Transcriptions with recurrent layers: they go back to the places that there are states of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_spec.engines.cache_state import pack_state, unpack_state
from edge_spec.engines.onnx.pool import OnnxPath, OnnxPool
from edge_spec.engines.onnx.states import States
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import StateError
from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.tree import Tree
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["RecurrentModel"]


class RecurrentModel:
    """A model over a transcription with recurrent layers. It takes sequences, and one text: the only path of its pool.

    The last tokens of what was computed can be taken back. Targets also keep the state where a prompt begins to be read
    and where it ends: an answer can be written again, or left out, without reading the whole text. Drafters keep theirs
    at the text that is certain.
    """

    def __init__(self, pool: OnnxPool) -> None:
        self._pool = pool
        self._path = OnnxPath(pool)
        self.kept: KeptTokens | None = None
        self.settings: ModelSettings = pool.settings
        self.n_vocab = pool.n_vocab
        self.n_ctx = pool.n_ctx
        self._begin = 0
        self._reads_on = False

    @property
    def n_past(self) -> int:
        """How many tokens are committed."""
        return self._path.n_past

    @property
    def capabilities(self) -> Capabilities:
        """See ``LanguageModel``."""
        return self._pool.capabilities

    @capabilities.setter
    def capabilities(self, found: Capabilities) -> None:
        self._pool.capabilities = found

    @property
    def profile(self) -> NumericsProfile:
        """See ``LanguageModel``."""
        return self._pool.profile

    @profile.setter
    def profile(self, profile: NumericsProfile) -> None:
        self._pool.profile = profile

    @property
    def states(self) -> States:
        """The states of the text; only for as long as the model is open."""
        states = self._pool.session.states
        assert states is not None
        return states

    # --- computing

    def prefill(self, tokens: Sequence[int]) -> None:
        states, path = self.states, self._path
        path.require_room(len(tokens))
        if not self._reads_on:
            # Here a prompt begins; one that is read in several calls goes on where the last one has ended.
            self._begin = path.n_past
        self._reads_on = True
        chunk = self.settings.prefill_chunk
        try:
            for start in range(0, len(tokens), chunk):
                self._keep_places()
                part = tokens[start : start + chunk]
                # As many rows can be taken back as those of a decode.
                n_read = max(0, len(part) - self.settings.max_rows + 1)
                states.prepare(path.n_past, 0, self.capabilities.padded(len(part)), n_read, self._settle)
                path.prefill(part)
        except BaseException:
            # Some layers may have taken in what others have not.
            path.rollback(states.nearest(path.n_past))
            raise
        self._keep_places()

    def _keep_places(self) -> None:
        if self.settings.exact:
            self.states.mark(self._begin, self.n_past)

    def decode(self, tree: Tree) -> Logits:
        path, first = self._path, len(self._path.pending)
        part = path.part_of(tree)
        self.states.prepare(path.n_past, first, self.capabilities.padded(len(part.tokens)), 0, self._settle)
        return path.decode(tree)

    def _settle(self) -> None:
        """Run the graph without a row, which lets states take in what is kept for them."""
        self._pool.session.run(np.zeros(1, np.int32), 0, range(0))

    # --- going back

    def keep(self, path: Sequence[int]) -> None:
        self._reads_on = False
        self._path.keep(path)

    def rollback(self, n_past: int) -> None:
        self._reads_on = self._reads_on and n_past >= self.n_past
        self._path.rollback(n_past)
        self._path.rollback(self.states.nearest(n_past))

    def hold(self) -> None:
        states = self.states
        if not self.settings.exact:
            self._path.drop_pending()
            states.mark(self.n_past)

    def shift(self, first: int, last: int) -> None:
        raise ValueError("states still know the tokens that would be taken out")

    # --- saving

    def save(self) -> bytes:
        body = self._path.saved_cells() + self.states.save(self.n_past, self._settle)
        return pack_state(body, n_past=self.n_past, profile=self.profile.name)

    def restore(self, state: bytes) -> None:
        states = self.states
        self.rollback(0)
        body, n_past = unpack_state(state, profile=self.profile.name, n_ctx=self.n_ctx)
        n_cells = len(body) - states.n_bytes
        if n_cells < 0:
            raise StateError("the saved state is damaged", hint="read the text again instead")
        self._path.restore_cells(body[:n_cells], n_past)
        states.restore(body[n_cells:], n_past)

    def cancel(self) -> None:
        self._pool.cancel()

    def resume(self) -> None:
        self._pool.resume()

    def close(self) -> None:
        self._pool.close()
