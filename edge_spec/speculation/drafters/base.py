"""What the loop asks of a drafter, whatever it guesses with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from edge_spec.sampling import Sampler
from edge_spec.speculation.tree import Tree

__all__ = ["Drafter", "SavingDrafter"]


@runtime_checkable
class Drafter(Protocol):
    """Guesses what the target will write next.

    A drafter follows a text: the prompt, then whatever is accepted. Its guesses can be as bad as they like;
    they change when a token arrives and never which.
    """

    @property
    def name(self) -> str:
        """Short, shown in statistics."""

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """Start following a text that is ``prompt`` so far, drawn from ``sampler``.

        Whatever an earlier text shares with this one may be reused.
        """

    def draft(self, limit: int) -> Tree:
        """Guess at most ``limit`` tokens that follow the text, likeliest path first; possibly none."""

    def accept(self, tokens: Sequence[int]) -> None:
        """The text has grown by ``tokens``."""

    def rollback(self, length: int) -> None:
        """The text is only its first ``length`` tokens after all; never shorter than the prompt."""

    def close(self) -> None:
        """Free everything. Safe to call twice."""


@runtime_checkable
class SavingDrafter(Drafter, Protocol):
    """A drafter with models whose caches are worth saving together with the target's."""

    def save(self) -> dict[str, bytes]:
        """What the models have committed of the text, by a name for each."""

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        """Bring back what ``save`` returned while it followed ``text``; ``begin`` comes next.

        Raises:
            StateError: a state is damaged or of another model; that model then begins with nothing.
        """
