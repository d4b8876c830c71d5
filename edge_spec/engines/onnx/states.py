"""The states of a text in layers without keys and values, and the places that they can go back to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.transcription.recurrent import PLACE, RUN, State
from edge_spec.engines.settings import ModelSettings

__all__ = ["States", "kept_rows"]

Floats = npt.NDArray[np.float32]


def kept_rows(settings: ModelSettings) -> int:
    """Return for how many tokens what came in is kept: as many as a cache has cells for drafts."""
    return 2 * settings.max_rows


_BASE, _KEPT = 0, 1
"""What the numbers of a layer's place are: how many tokens its state has taken in, and how many rows it keeps."""


class States:
    """States that a graph reads and writes in place.

    A state takes in what is committed, one run later than it was computed: what came in for the last tokens is kept, so
    a draft that is rejected, and a text that goes back by so many tokens, cost nothing. Further back there are copies
    of the places that were asked for, made when a state is about to pass one, and the empty text.

    Attributes:
        inputs: what is bound once, by the names of the graph's inputs.

    Args:
        capacity: rows that are kept.
    """

    def __init__(self, states: tuple[State, ...], layers: tuple[int, ...], capacity: int) -> None:
        self._capacity = capacity
        self._arrays = [state.array(capacity) for state in states]
        # The part of each that belongs to the state itself.
        self._own = [array[: state.shape[0]] for array, state in zip(self._arrays, states, strict=True)]
        self._places = np.zeros((len(layers), 2), np.int32)
        self._run = np.zeros(3, np.int32)
        self._marks: set[int] = set()
        self._copies: dict[int, list[Floats]] = {}
        self.inputs = {state.name: array for state, array in zip(states, self._arrays, strict=True)}
        self.inputs |= {f"{PLACE}_{layer}": place for layer, place in zip(layers, self._places, strict=True)}
        self.inputs[RUN] = self._run

    def is_near(self, n: int) -> bool:
        """Return whether every layer has, or keeps the rows for, a state of ``n`` tokens."""
        bases = self._places[:, _BASE]
        return bool((bases <= n).all() and (n <= bases + self._places[:, _KEPT]).all())

    def nearest(self, n: int) -> int:
        """Return the last length up to ``n`` with a state. Copies beyond it are dropped: the text goes on otherwise."""
        place = n if self.is_near(n) else max((known for known in self._copies if known <= n), default=0)
        self._copies = {known: copy for known, copy in self._copies.items() if known <= place}
        self._marks = {mark for mark in self._marks if mark <= place}
        return place

    def mark(self, *places: int) -> None:
        """From now on be able to come back to these lengths, where no state is beyond them yet, and to no others."""
        self._marks = set(places)
        self._copies = {place: copy for place, copy in self._copies.items() if place in self._marks}

    def prepare(self, n_text: int, n_pending: int, n_new: int, n_read: int, settle: Callable[[], None]) -> None:
        """Say which rows the next run goes over.

        Args:
            n_text: committed tokens before the new rows; there is a state of them, see ``nearest``.
            n_pending: nodes that were computed already.
            n_new, n_read: rows of the run, and how many of them are committed at once, so that the states take them in.
            settle: runs the graph without a row.
        """
        if n_pending + n_new - n_read > self._capacity:
            raise ValueError(f"{n_pending + n_new} pending tokens; at most {self._capacity} are possible")
        self._go_to(n_text)
        self._copy_marks(n_text + n_read, n_text + n_pending, settle)
        self._run[:] = n_text, n_pending, n_read

    def _go_to(self, n: int) -> None:
        if self.is_near(n):
            return
        if n:
            for own, copy in zip(self._own, self._copies[n], strict=True):
                own[...] = copy
        else:
            for own in self._own:
                own[...] = 0
        self._places[:] = n, 0

    def _copy_marks(self, end: int, n_known: int, settle: Callable[[], None]) -> None:
        """Copy the states of marked places that will have passed when they are those of ``end`` tokens.

        Args:
            n_known: committed and pending tokens.
        """
        for mark in sorted(self._marks - self._copies.keys()):
            if 0 < mark < end and self.is_near(mark):
                self._settle(mark, n_known - mark, settle)
                self._copies[mark] = [own.copy() for own in self._own]

    def _settle(self, n: int, n_further: int, settle: Callable[[], None]) -> None:
        """Let the states take in all of the first ``n`` tokens, and keep the rows after them."""
        if (self._places[:, _BASE] != n).any():
            self._run[:] = n, n_further, 0
            settle()

    def save(self, n: int, settle: Callable[[], None]) -> bytes:
        """Return the states of a text of ``n`` tokens, of which there is one."""
        self._go_to(n)
        self._copy_marks(n, n, settle)
        self._settle(n, 0, settle)
        return b"".join(own.tobytes() for own in self._own)

    def sizes(self) -> dict[str, int]:
        """What is allocated, by the names of ``Footprint.lines``."""
        whole = sum(array.nbytes for array in self._arrays)
        return {"recurrent state": self.n_bytes, "snapshots for drafts": whole - self.n_bytes}

    @property
    def n_bytes(self) -> int:
        """What ``save`` returns."""
        return sum(own.nbytes for own in self._own)

    def restore(self, body: bytes, n: int) -> None:
        """Bring back what ``save`` returned, which has ``n_bytes``."""
        start = 0
        for own in self._own:
            own[...] = np.frombuffer(body, np.float32, own.size, start).reshape(own.shape)
            start += own.nbytes
        self._places[:] = n, 0
        self._marks, self._copies = set(), {}
