"""Several drafters, of which every round uses the one that pays most, or none. ``docs/choosing.md`` states the rule."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from edge_spec.sampling import Sampler
from edge_spec.speculation.chooser.curve import CostCurve
from edge_spec.speculation.chooser.decider import Decider
from edge_spec.speculation.chooser.prices import Prices
from edge_spec.speculation.chooser.records import at_least_zero, whole
from edge_spec.speculation.drafters.base import Choice, Decision, Drafter
from edge_spec.speculation.follower import Follower
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["Chooser"]

_PLAIN = "off"

_FIRST_LENGTH = 128.0
"""Tokens that a reply is expected to have before there was one."""

_ENOUGH_TO_KEEP = 32
"""A run of fewer rounds has learned nothing worth keeping."""


class Chooser(Drafter):
    """Writes as many tokens per second as the drafters at hand allow.

    With R the tokens per second that are written now, a draft is worth its rows while the tokens that it is expected to
    bring, less R times the seconds that drafting, verifying and bookkeeping take, grow: maximizing tokens over time is
    maximizing tokens minus R times time (the marginal rule of fractional programming). All lengths are looked at, since
    costs have kinks. Plain decoding is a choice like any other.

    A table is asked in every round while that pays, a model where it is expected to gain most. A model's draft stops as
    soon as another level would not pay. Of a draft, the nodes that are worth their rows are verified. Who is not asked
    is tried now and then: what that loses stays below half a percent of the time. Where nobody pays, that is found out
    again so rarely that it takes no more either. A model does not read a text before it is wanted, and then piece by
    piece.

    This is the chooser of one text: its drafters, and what they did for its reply. Choosers that have joined decide
    together, by what all of them have learned, see ``Decider``.

    Args:
        drafters: one without a model (a table) counts as free to call.
        seconds: first estimates of seconds per decode of the target, by number of rows.
        most: nodes of the largest draft.
        clock: tells seconds.

    Attributes:
        drafters: the drafters, by name.
        is_greedy: whether the text is written at temperature 0, where claims come true more often.
    """

    name = "auto"
    deciders: type[Decider] = Decider

    def __init__(
        self,
        drafters: Sequence[Drafter],
        *,
        seconds: Mapping[int, float] | None = None,
        most: int = 9,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.most = most
        self.drafters: Mapping[str, Drafter] = {drafter.name: drafter for drafter in drafters}
        self.is_greedy = False
        self._known = _Known(self.deciders(drafters, Prices(CostCurve(seconds), most), clock))
        self._decided: Callable[[], Decision] | None = None
        self._last_name = self.name
        # Of this reply: its tokens, and its rounds by who drafted.
        self._n_written, self._rounds = 0, Counter[str]()

    def join(self, other: Chooser) -> None:
        """Learn together with another chooser, which drafts for another text of the same target."""
        self._known = other._known

    @property
    def prices(self) -> Prices:
        """What rounds cost while no other text is written."""
        return self._known.alone.prices

    # --- a reply

    @property
    def last_name(self) -> str:
        return self._last_name

    def begin(self, text: Text, sampler: Sampler) -> None:
        super().begin(text, sampler)
        known = self._known
        known.begins()
        if self._n_written:
            known.usual_length += 0.2 * (self._n_written - known.usual_length)
        self._n_written, self._rounds = 0, Counter()
        self._decided, self._last_name = None, self.name
        self.is_greedy = sampler.settings.temperature == 0
        for drafter in self.drafters.values():
            drafter.begin(text, sampler)

    @property
    def n_left(self) -> float:
        """Tokens that are expected of the reply from here on. Long ones are taken to go on as all replies do."""
        room, usual = self.text.room, self._known.usual_length
        return usual if room is None else min(room, usual)

    def draft(self, limit: int) -> Tree:
        if self._known.alone.rests:
            # Small models notice the time that the rest takes.
            self._last_name = self.name
            return EMPTY
        return self.draft_all([self], [limit], self.most)[0]

    def draft_all(self, drafters: Sequence[Drafter], limits: Sequence[int], most: int) -> Sequence[Tree]:
        choosers = _choosers(drafters)
        if most < 1:
            self._known.forget()
            return (EMPTY,) * len(choosers)
        decider = self._known.decider(choosers, most)
        drafts = decider.draft(choosers, limits, most)
        for chooser in choosers:
            chooser._last_name = self.name
            if decider.used is not None:
                chooser._last_name, chooser._decided = decider.used.drafter.last_name, decider.decided
        return drafts

    def learn(self, done: Round) -> None:
        self._learn([self], [done])

    def learn_all(self, drafters: Sequence[Drafter], rounds: Sequence[Round]) -> Sequence[Exception | None]:
        try:
            self._learn(_choosers(drafters), rounds)
        except Exception as error:
            return [error] * len(rounds)
        return [None] * len(rounds)

    def _learn(self, choosers: Sequence[Chooser], rounds: Sequence[Round]) -> None:
        decider = self._known.deciders.get(len(rounds))
        used = decider.used if decider is not None else None
        for chooser, done in zip(choosers, rounds, strict=True):
            chooser._n_written += len(done.tokens)
            if used is not None or not done.drafted:
                chooser._rounds[used.name if used is not None else _PLAIN] += 1
        if decider is not None:
            decider.learn(rounds)

    @property
    def choices(self) -> dict[str, Choice]:
        found, rounds, alone = {}, self._rounds, self._known.alone
        alone.count_passed()
        alone.prices.update()
        if alone.prices.plain_s > 0:
            found[_PLAIN] = Choice(rounds=rounds[_PLAIN], round_s=alone.prices.plain_s, tokens_per_round=1.0)
        for candidate in alone.candidates:
            round_s, n_tokens = candidate.usual_round(greedy=self.is_greedy) or (None, None)
            found[candidate.name] = Choice(rounds=rounds[candidate.name], round_s=round_s, tokens_per_round=n_tokens)
        return found

    @property
    def decision(self) -> Decision | None:
        return self._decided() if self._decided is not None else None

    @property
    def has_learned(self) -> bool:
        """Whether this run has learned enough to be worth keeping."""
        alone = self._known.alone
        alone.count_passed()
        return alone.n_rounds >= _ENOUGH_TO_KEEP

    def as_json(self) -> dict[str, Any]:
        """Return what it has learned of this device and of its drafters, as ``recall`` takes it."""
        alone, prices = self._known.alone, self.prices
        alone.count_passed()
        return {
            "seconds": prices.curve.as_json(),
            "own": {"round_s": prices.round_s, "token_s": prices.token_s},
            "rounds": self._known.n_rounds + alone.n_rounds,
            "drafters": {candidate.name: candidate.as_json() for candidate in alone.candidates},
        }

    def recall(self, learned: Mapping[str, Any]) -> None:
        """Begin with what was learned in an earlier run; what depends on its text is left out.

        Raises:
            ValueError, TypeError, LookupError, AttributeError: it is damaged; at most a part of it counts.
        """
        n_rounds = whole(learned["rounds"], least=1)
        own = learned["own"]
        round_s, token_s = at_least_zero(own["round_s"]), at_least_zero(own["token_s"])
        self.prices.curve.recall(learned["seconds"])
        self.prices.begin_with(round_s, token_s)
        self._known.n_rounds = n_rounds
        for candidate in self._known.alone.candidates:
            if candidate.name in learned["drafters"]:
                candidate.recall(learned["drafters"][candidate.name])

    # --- its drafters

    @property
    def followed(self) -> Mapping[str, Follower]:
        # Drafters may share a model; then they follow one text, under the name of the first one.
        found: dict[Follower, str] = {}
        for drafter in self.drafters.values():
            for name, follower in drafter.followed.items():
                found.setdefault(follower, name)
        return {name: follower for follower, name in found.items()}

    @property
    def most_texts(self) -> int:
        # Of its drafters those draft that can.
        return sys.maxsize

    def read(self, most: int | None = None) -> bool:
        # Its models read when they are wanted.
        return True

    def n_unread(self) -> int:
        return 0

    def save(self) -> dict[str, bytes]:
        return {name: state for drafter in self.drafters.values() for name, state in drafter.save().items()}

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        for drafter in self.drafters.values():
            drafter.restore(states, text)

    def close(self) -> None:
        # Nothing is held of a text that is closed.
        self._known.forget()
        for drafter in self.drafters.values():
            drafter.close()

    @property
    def held_bytes(self) -> int:
        return sum(drafter.held_bytes for drafter in self.drafters.values())


class _Known:
    """What the choosers of all texts of a target know together.

    Attributes:
        deciders: by how many texts share a decode.
        usual_length: how long replies are.
        n_rounds: of earlier runs.
    """

    def __init__(self, alone: Decider) -> None:
        self.deciders = {1: alone}
        self.usual_length = _FIRST_LENGTH
        self.n_rounds = 0

    @property
    def alone(self) -> Decider:
        """Decides for texts that are alone."""
        return self.deciders[1]

    def decider(self, choosers: Sequence[Chooser], most: int) -> Decider:
        """Return what decides for several texts."""
        n_texts = len(choosers)
        if n_texts not in self.deciders:
            self.deciders[n_texts] = self.alone.for_several([*choosers[0].drafters.values()], n_texts, most)
        return self.deciders[n_texts]

    def begins(self) -> None:
        """A reply begins."""
        for decider in self.deciders.values():
            decider.begins()

    def forget(self) -> None:
        """Hold nothing of a round that was interrupted, nor of its texts."""
        for decider in self.deciders.values():
            decider.forget()


def _choosers(drafters: Sequence[Drafter]) -> list[Chooser]:
    """Return what drafts for several texts, all of one kind."""
    return [drafter for drafter in drafters if isinstance(drafter, Chooser)]
