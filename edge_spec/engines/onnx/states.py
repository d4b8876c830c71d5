"""The states of a text in layers without keys and values, and the places that they can go back to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels import NUMBERS
from edge_spec.engines.onnx.transcription.recurrent import State
from edge_spec.engines.settings import ModelSettings
from edge_spec.memory.blocks import new_block

__all__ = ["Settle", "States", "StatesMemory", "kept_rows", "most_copies"]

Floats = npt.NDArray[np.float32]
Settle = Callable[[Sequence[int]], None]
"""Runs the graph without a row, for one text of these numbers."""


def kept_rows(settings: ModelSettings) -> int:
    """Return for how many tokens what came in is kept: as many as a cache has cells for drafts."""
    return 2 * settings.max_rows


def most_copies(settings: ModelSettings) -> int:
    """Return the most states that a text keeps copies of: where its prompt began and ended, or what a drafter
    holds."""
    return 2 if settings.exact else 1


_HEAD = NUMBERS["STATE_HEAD"]
"""Numbers of a layer before its states, of which two say where it is: how many tokens its state has taken in, and how
many rows it keeps."""

_BASE, _KEPT = 0, 1


class _Layers:
    """The layers of one text, one after the other in a block of memory.

    Attributes:
        address: where they begin.
        places: the two numbers of each layer.
        own: what belongs to the states themselves, ``[n_layers, n]`` of each.
    """

    def __init__(self, states: Sequence[State], n_layers: int, capacity: int) -> None:
        sizes = [state.n_own + capacity * state.n_row for state in states]
        layers = _zeros(n_layers, _HEAD + sum(sizes))
        self.address = layers.ctypes.data
        self.places = layers[:, :2].view(np.int32)
        starts = accumulate(sizes, initial=_HEAD)
        self.own = [layers[:, start : start + state.n_own] for start, state in zip(starts, states, strict=False)]
        self.whole = layers

    def put(self, state: Floats, n: int) -> None:
        """Let the states be those of ``n`` tokens, as ``copy`` returned them."""
        ends = accumulate(own.shape[1] for own in self.own)
        for own, part in zip(self.own, np.split(state, list(ends)[:-1], axis=1), strict=True):
            own[...] = part
        self.places[:] = n, 0

    def clear(self) -> None:
        """Let the states be those of an empty text."""
        for own in self.own:
            own[...] = 0
        self.places[:] = 0

    def copy(self) -> Floats:
        """Return a copy of the states themselves, layer by layer."""
        copy = _zeros(len(self.whole), sum(own.shape[1] for own in self.own))
        return np.concatenate(self.own, axis=1, out=copy)


def _zeros(*shape: int) -> Floats:
    """Return an array whose memory is given back as soon as nobody refers to it."""
    n = prod(shape)
    return np.frombuffer(new_block(max(1, 4 * n)), np.float32, n).reshape(shape)


class StatesMemory:
    """What the texts of a model take for their states: each as much, while it has any token.

    What the only text gives back is kept for the next one.

    Args:
        states: those of a layer.
        capacity: rows that are kept.
    """

    def __init__(self, states: Sequence[State], n_layers: int, capacity: int) -> None:
        self.capacity = capacity
        self._states, self._n_layers = tuple(states), n_layers
        self._held: WeakSet[_Layers] = WeakSet()
        self._spare: _Layers | None = None

    @property
    def n_held(self) -> int:
        """How many texts have states."""
        return len(self._held)

    @property
    def state_bytes(self) -> int:
        """What the states themselves take of a text: as much as ``States.save`` returns."""
        return 4 * self._n_layers * sum(state.n_own for state in self._states)

    @property
    def kept_bytes(self) -> int:
        """What the rows take that are kept of a text."""
        return 4 * self._n_layers * self.capacity * sum(state.n_row for state in self._states)

    @property
    def layer_numbers(self) -> int:
        """How many numbers a layer has."""
        return _HEAD + sum(state.n_own + self.capacity * state.n_row for state in self._states)

    def take(self) -> _Layers:
        """Return the layers of an empty text.

        Raises:
            MemoryError: there is no room for them.
        """
        layers, self._spare = self._spare or _Layers(self._states, self._n_layers, self.capacity), None
        self._held.add(layers)
        return layers

    def give(self, layers: _Layers) -> None:
        """A text needs its layers no more."""
        self._held.discard(layers)
        if not self._held:
            layers.clear()
            self._spare = layers

    def numbers(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
        """Return the graph's input ``run``, see ``kernels/src/recurrent_operator.h``, of what ``prepare`` returned."""
        head = [len(texts), self.capacity, self.layer_numbers]
        return np.array([*head, *(number for text in texts for number in text)], np.int64)


class States:
    """The states of one text, which a graph reads and writes in place; none where it has no token.

    A state takes in what is committed, one run later than it was computed: what came in for the last tokens is kept, so
    a draft that is rejected, and a text that goes back by so many tokens, cost nothing. Further back there are copies
    of the places that were asked for, made when a state is about to pass one, and the empty text. Paths that fork share
    these copies.
    """

    def __init__(self, memory: StatesMemory) -> None:
        self._memory = memory
        self._layers: _Layers | None = None
        self._marks: set[int] = set()
        self._copies: dict[int, Floats] = {}
        # Where the prompt began that is being read, or was read last.
        self._begin = 0
        self._reads_on = False

    @property
    def copied_bytes(self) -> int:
        """What the copies take."""
        return sum(copy.nbytes for copy in self._copies.values())

    def _is_near(self, n: int) -> bool:
        """Return whether every layer has, or keeps the rows for, a state of ``n`` tokens."""
        if self._layers is None:
            return n == 0
        bases, kept = self._layers.places[:, _BASE], self._layers.places[:, _KEPT]
        return bool((bases <= n).all() and (n <= bases + kept).all())

    def nearest(self, n: int) -> int:
        """Return the last length up to ``n`` with a state."""
        return n if self._is_near(n) else max((known for known in self._copies if known <= n), default=0)

    def rollback(self, n: int, *, n_past: int) -> int:
        """Go back from ``n_past`` tokens to the nearest place, which is returned.

        Copies beyond it are dropped: the text goes on otherwise.
        """
        self._reads_on = self._reads_on and n >= n_past
        place = self.nearest(n)
        self._copies = {known: copy for known, copy in self._copies.items() if known <= place}
        self._marks = {mark for mark in self._marks if mark <= place}
        return place

    def forget(self) -> None:
        """Be the states of an empty text, and give their memory back."""
        layers, self._layers = self._layers, None
        if layers is not None:
            self._memory.give(layers)
        self._marks, self._copies, self._reads_on = set(), {}, False

    def reads(self, n_past: int) -> None:
        """A prompt begins to be read here, unless one is being read already."""
        if not self._reads_on:
            self._begin = n_past
        self._reads_on = True

    def writes(self) -> None:
        """No prompt is being read any more."""
        self._reads_on = False

    def mark_prompt(self, n_past: int) -> None:
        """Be able to come back to where the prompt began and to where it was read up to."""
        self.mark(self._begin, n_past)

    def mark(self, *places: int) -> None:
        """From now on be able to come back to these lengths, where no state is beyond them yet, and to no others."""
        self._marks = set(places)
        self._copies = {place: copy for place, copy in self._copies.items() if place in self._marks}

    def prepare(self, n_text: int, n_pending: int, n_new: int, n_read: int, settle: Settle) -> list[int]:
        """Return which rows the next run goes over, as numbers for ``StatesMemory.numbers``.

        Args:
            n_text: committed tokens before the new rows; there is a state of them, see ``nearest``.
            n_pending: nodes that were computed already.
            n_new, n_read: rows of the run, and how many of them are committed at once, so that the states take them in.
        """
        if n_pending + n_new - n_read > self._memory.capacity:
            raise ValueError(f"{n_pending + n_new} pending tokens; at most {self._memory.capacity} are possible")
        self._go_to(n_text)
        self._copy_marks(n_text + n_read, n_text + n_pending, settle)
        return self._numbers(n_text, n_pending, n_new, n_read)

    def _numbers(self, n_text: int, n_pending: int, n_new: int, n_read: int) -> list[int]:
        return [self._held().address, n_text, n_pending, n_new, n_read]

    def _held(self) -> _Layers:
        if self._layers is None:
            self._layers = self._memory.take()
        return self._layers

    def _go_to(self, n: int) -> None:
        if self._is_near(n):
            return
        if n:
            self._held().put(self._copies[n], n)
        else:
            self._held().clear()

    def _copy_marks(self, end: int, n_known: int, settle: Settle) -> None:
        """Copy the states of marked places that will have passed when they are those of ``end`` tokens.

        Args:
            n_known: committed and pending tokens.
        """
        for mark in sorted(self._marks - self._copies.keys()):
            if 0 < mark < end and self._is_near(mark):
                self._settle(mark, n_known - mark, settle)
                self._copies[mark] = self._held().copy()

    def _settle(self, n: int, n_further: int, settle: Settle) -> None:
        """Let the states take in all of the first ``n`` tokens, and keep the rows after them."""
        if (self._held().places[:, _BASE] != n).any():
            settle(self._numbers(n, n_further, 0, 0))

    def fork(self, n: int, n_known: int, settle: Settle) -> States:
        """Return the states of another text that begins with the first ``n`` tokens, of which there is a state.

        Args:
            n_known: committed and pending tokens.

        Raises:
            MemoryError: there is no room for them.
        """
        if n in self._marks:
            self._copy_marks(n + 1, n_known, settle)
        fork = States(self._memory)
        fork._copies = {place: copy for place, copy in self._copies.items() if place <= n}
        fork._marks = {mark for mark in self._marks if mark <= n}
        if n in self._copies:
            fork._held().put(self._copies[n], n)
        elif n:
            fork._held().whole[...] = self._held().whole
        return fork

    def save(self, n: int, settle: Settle) -> bytes:
        """Return the states of a text of ``n`` tokens, of which there is one."""
        if n == 0:
            return bytes(self._memory.state_bytes)
        self._go_to(n)
        self._copy_marks(n, n, settle)
        self._settle(n, 0, settle)
        return self._held().copy().tobytes()

    @property
    def n_bytes(self) -> int:
        """What ``save`` returns."""
        return self._memory.state_bytes

    def restore(self, body: bytes, n: int) -> None:
        """Bring back what ``save`` returned, which has ``n_bytes``."""
        self.forget()
        if n:
            layers = self._held()
            layers.put(np.frombuffer(body, np.float32).reshape(len(layers.whole), -1), n)
