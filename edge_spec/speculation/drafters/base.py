"""What the loop asks of a drafter, whatever it guesses with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from edge_spec.errors import PoolFull, StateError
from edge_spec.sampling import Sampler
from edge_spec.speculation.follower import Follower
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["Choice", "Decision", "Drafter", "WorthMore", "always"]

WorthMore = Callable[[Sequence[Tree]], bool]
"""Asked before each further step whether drafts of several texts are worth its time."""


def always(drafts: Sequence[Tree]) -> bool:
    """Return True: drafts are as long as they may be."""
    return True


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


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Why so much of a draft was verified, in the numbers that decided it; ``docs/choosing.md`` states the rule.

    Attributes:
        drafter: who drafted.
        n_texts: texts that shared the decode, each with a row of its own.
        chances: of its nodes that they are accepted, each with all above it; the largest first.
        n_verified: how many of them were verified.
        is_trial: whether the drafter was only tried: then one is verified at least.
        decodes_s: seconds of decodes without drafted rows, c(1) of a single text, and with 1, 2 and more of them.
        round_s, token_s: seconds of a round outside of drafting and decoding, o, and how much more every further token
            of it takes.
        drafting_s: seconds that this draft took.
        step_s: seconds that a further level of it usually takes, s; None for a table.
        rate: tokens per second of the last rounds, R.
    """

    drafter: str
    n_texts: int
    chances: tuple[float, ...]
    n_verified: int
    is_trial: bool
    decodes_s: tuple[float, ...]
    round_s: float
    token_s: float
    drafting_s: float
    step_s: float | None
    rate: float

    def gain(self, n: int) -> float:
        """Return what a round gains in which the best ``n`` nodes are verified, now that they are drafted."""
        further = sum(self.chances[:n])
        own_s = self.round_s + further * self.token_s + self.drafting_s
        return self.n_texts + further - self.rate * (self.decodes_s[n] + own_s)


class Drafter:
    """Guesses what the target will write next.

    Its guesses may be as bad as they like; they change when a token arrives and never which. Override ``draft`` and
    what else is needed. A drafter with models names them in ``followed``; the other defaults then suit it.

    Attributes:
        name: short, shown in statistics.
        takes_guidance: whether a reply's grammar may prune and extend its drafts.
        text: the text that it drafts for. It grows, and may become shorter, between two
            drafts; ``Text.since`` tells what is new.
    """

    name = "drafter"
    takes_guidance = True
    text: Text

    @property
    def last_name(self) -> str:
        """The name of what made the last draft: of one of several drafters, if it chooses among them."""
        return self.name

    def begin(self, text: Text, sampler: Sampler) -> None:
        """Draft for a text from now on, which is drawn from ``sampler``; ``read`` comes next.

        What it knows of an earlier text may be reused.
        """
        self.text = text

    def draft(self, limit: int) -> Tree:
        """Guess at most ``limit`` tokens that follow the text, likeliest path first; possibly none.

        A drafter that grows drafts level by level overrides ``draft_all_while`` instead.
        """
        if type(self).draft_all_while is Drafter.draft_all_while:
            return EMPTY
        return self.draft_all_while([self], [limit], always)[0]

    def draft_all(self, drafters: Sequence[Drafter], limits: Sequence[int], most: int) -> Sequence[Tree]:
        """Draft for several texts that share a decode, at most ``limits`` tokens for each and ``most`` for all.

        Each gets what it would get alone, and where that is too much an equal part of ``most``.

        Args:
            drafters: those of the texts, all of its kind; it is the first.
        """
        if self.followed:
            # A model takes time for every level: what there are no rows for is not drafted.
            limits = _shares(limits, most)
        drafts = self.draft_all_while(drafters, limits, always)
        shares = _shares([len(draft) for draft in drafts], most)
        return [
            draft if len(draft) <= share else draft.best(share) for draft, share in zip(drafts, shares, strict=True)
        ]

    def draft_all_while(
        self, drafters: Sequence[Drafter], limits: Sequence[int], worth_more: WorthMore
    ) -> Sequence[Tree]:
        """Like ``draft`` for several texts, but ask before each further level whether it is worth its time.

        Args:
            drafters: those of the texts, all of its kind; it is the first.
            worth_more: called with the draft of each that could go on, or ``EMPTY``. A drafter whose drafts cost
                nothing by the token need not ask.
        """
        return [each.draft(limit) if limit > 0 else EMPTY for each, limit in zip(drafters, limits, strict=True)]

    def learn(self, done: Round) -> None:
        """A round is over, and its tokens are text."""

    def learn_all(self, drafters: Sequence[Drafter], rounds: Sequence[Round]) -> Sequence[Exception | None]:
        """A round of several texts is over, see ``draft_all``; returns for each what has failed."""

        def failed(drafter: Drafter, done: Round) -> Exception | None:
            try:
                drafter.learn(done)
            except Exception as error:
                return error
            return None

        return [failed(drafter, done) for drafter, done in zip(drafters, rounds, strict=True)]

    @property
    def followed(self) -> Mapping[str, Follower]:
        """Its models and the texts that they follow, by names that are unique within the drafter."""
        return {}

    @property
    def most_texts(self) -> int:
        """For how many texts at a time drafters of its kind can draft: as many as its models know."""
        pools = [each.model.pool for each in self.followed.values()]
        return min((min(pool.max_paths, pool.capabilities.max_rows) for pool in pools), default=sys.maxsize)

    def read(self, most: int | None = None) -> bool:
        """Read what its models have not read of the text, or at most ``most`` tokens; return whether all is read."""
        try:
            return all([follower.read(most) for follower in self.followed.values()])
        except PoolFull:
            # Where there are no cells nothing is drafted.
            return True

    def n_unread(self) -> int:
        """Return how many tokens its models have not read of the text, together."""
        return sum(follower.n_unread for follower in self.followed.values())

    def evict(self) -> None:
        """Give back the cells of its models, which read the text again when they are asked."""
        for follower in self.followed.values():
            follower.evict()

    def save(self) -> dict[str, bytes]:
        """Return what its models have committed of the text, by the names of ``followed``."""
        return {name: follower.save() for name, follower in self.followed.items()}

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        """Restore what ``save`` returned while it drafted for ``text``; ``begin`` comes next.

        A model whose state is missing, damaged or of another model starts with an empty cache, and reads.
        """
        for name, follower in self.followed.items():
            follower.leave()
            with suppress(StateError, PoolFull):
                if name in states:
                    follower.restore(states[name], text)

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        for follower in self.followed.values():
            follower.model.close()

    @property
    def choices(self) -> Mapping[str, Choice]:
        """What it has chosen among in this reply, by name; empty for one that does not choose."""
        return {}

    @property
    def decision(self) -> Decision | None:
        """How much of its last draft it chose to have verified, and why; None for one that does not choose."""
        return None

    @property
    def held_bytes(self) -> int:
        """Memory that its own tables take now; models do not count."""
        return 0


def _shares(wanted: Sequence[int], most: int) -> list[int]:
    """Return equal parts of ``most``, none more than is wanted: what one does not want is for the others."""
    shares, left = [0] * len(wanted), max(most, 0)
    for n_before, place in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[place] = max(0, min(wanted[place], left // (len(wanted) - n_before)))
        left -= shares[place]
    return shares
