"""Several texts in one cache, so that one decode advances all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from edge_spec.speculation.language_model import LanguageModel, Logits

__all__ = ["Texts", "TextsModel"]


class Texts(Protocol):
    """Several texts in one cache, each in a slot of its own, besides the text of the model itself.

    A text's rows have the bits that they have in the model itself: with what it was read and decoded makes no
    difference.
    """

    @property
    def n_slots(self) -> int:
        """How many texts there can be at a time; slots are numbered from 0."""

    def read(self, slot: int, tokens: Sequence[int]) -> None:
        """Commit tokens after the text of a slot, without logits, as ``LanguageModel.prefill`` does.

        Raises:
            ContextFull: they do not fit the slot. Cancelled: ``cancel`` of the model was called; the text is as it was.
        """

    def copy(self, source: int, slot: int, n: int) -> None:
        """Make the first ``n`` tokens of another slot the text of a slot."""

    def rollback(self, slot: int, n: int) -> None:
        """Forget all tokens of a slot but the first ``n``."""

    def decode(self, tokens: Mapping[int, int]) -> Logits:
        """Commit a token in each of some slots, given by slot.

        Returns:
            A row for each of them, in order, ``[tokens, n_vocab]``, good until anything else is computed.

        Raises:
            ContextFull: a slot is full. Cancelled: ``cancel`` of the model was called. Nothing is committed then.
        """

    def hidden_rows(self, slot: int) -> npt.NDArray[np.float16]:
        """Return what a head would read of the tokens of a slot, ``[n, width]``, good until that slot is changed.

        Raises:
            ValueError: the cache was not asked to keep them.
        """

    def close(self) -> None:
        """Free the cache. Safe to call twice, and after the model was closed."""


@runtime_checkable
class TextsModel(LanguageModel, Protocol):
    """A model that can advance several texts in one decode."""

    @property
    def most_texts(self) -> int:
        """How many texts one decode can advance; 1 where rows of several would not be those of a single text."""

    def texts_bytes(self, n_slots: int, n_tokens: int) -> int:
        """Return what the cache of ``texts`` takes."""

    def texts(self, n_slots: int, n_tokens: int, *, hidden: bool = False) -> Texts:
        """An empty cache for texts of at most ``n_tokens`` each, in the memory of this process until it is closed.

        Args:
            hidden: keep the hidden states that the model was asked for, see ``Opener.hidden_rows``.
        """
