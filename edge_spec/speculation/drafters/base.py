"""What the loop asks of a drafter, whatever it guesses with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edge_spec.sampling import Sampler
from edge_spec.speculation.followed_text import FollowedText
from edge_spec.speculation.pause import Pause
from edge_spec.speculation.round import Round
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["Choice", "Drafter"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of the ways to write the next tokens, as the measurements of this device and this text see it.

    Attributes:
        rounds: how often it was chosen in this reply.
        round_s: seconds that one of its rounds takes; None before it was tried.
        tokens_per_round: tokens that one of its rounds writes; None before it was tried.
    """

    rounds: int
    round_s: float | None
    tokens_per_round: float | None


class Drafter:
    """Guesses what the target will write next.

    A drafter follows a text: the prompt, then whatever is accepted. Its guesses may be as bad as they like; they
    change when a token arrives and never which. Override ``draft`` and what else is needed; the defaults do nothing.

    Attributes:
        name: short, shown in statistics.
    """

    name = "drafter"

    @property
    def last_name(self) -> str:
        """The name of what made the last draft: of one of several drafters, if it chooses among them."""
        return self.name

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """Start following a text that is ``prompt`` so far, drawn from ``sampler``; ``read`` comes next.

        What an earlier text shares with this one may be reused.
        """

    def read(self, most: int | None = None) -> bool:
        """Read what its models have not read of the text, or ``most`` tokens of that; whether all is read now."""
        return True

    @property
    def n_unread(self) -> int:
        """How many tokens its models have not read of the text, together."""
        return 0

    @property
    def pause(self) -> Pause:
        """In which rounds it need not be called; the decoding loop fetches this once per text. Never by default."""
        return Pause()

    def limit(self, left: int) -> int:
        """Return the most tokens that it would draft in the next round; asked once before each.

        Args:
            left: the tokens that the text may still grow by.
        """
        return sys.maxsize

    def draft(self, limit: int) -> Tree:
        """Guess at most ``limit`` tokens that follow the text, likeliest path first; possibly none."""
        return EMPTY

    def draft_while(self, limit: int, worth_more: Callable[[Tree], bool]) -> Tree:
        """Like ``draft``, but ask before each further step whether it is worth its time.

        Args:
            worth_more: called with the draft so far. A drafter whose drafts cost nothing by the token need not ask.
        """
        return self.draft(limit)

    def accept(self, tokens: Sequence[int]) -> None:
        """The text has grown by ``tokens``."""

    def learn(self, done: Round) -> None:
        """A round is over; comes after ``accept``."""

    def rollback(self, length: int) -> None:
        """The text is only its first ``length`` tokens after all; never shorter than the prompt."""

    def save(self) -> dict[str, bytes]:
        """Return what its models have committed of the text, by a name for each."""
        return {}

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        """Restore what ``save`` returned while it followed ``text``; ``begin`` comes next.

        Raises:
            StateError: a state is damaged or of another model; that model then starts with an empty cache.
        """

    def close(self) -> None:
        """Free everything. Safe to call twice."""

    @property
    def followed(self) -> Mapping[str, FollowedText]:
        """Its models and the texts that they follow, by the names of ``save``."""
        return {}

    @property
    def choices(self) -> Mapping[str, Choice]:
        """What it has chosen among in this reply, by name; empty for one that does not choose."""
        return {}

    @property
    def held_bytes(self) -> int:
        """Memory that its own tables take now; models do not count."""
        return 0
