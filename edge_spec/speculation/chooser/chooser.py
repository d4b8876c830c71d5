"""Several drafters, of which every round uses the one that pays most, or none. ``docs/choosing.md`` states the rule."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import ceil
from time import perf_counter
from typing import Any, NamedTuple

from edge_spec.sampling import Sampler
from edge_spec.speculation.chooser.candidate import Candidate
from edge_spec.speculation.chooser.curve import CostCurve
from edge_spec.speculation.chooser.prices import Prices, Snapshot, follow
from edge_spec.speculation.chooser.records import at_least_zero, whole
from edge_spec.speculation.drafters.base import Choice, Decision, Drafter, WorthMore, always
from edge_spec.speculation.follower import Follower
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree, best_of_all

__all__ = ["Chooser"]

_PLAIN = "off"

_PIECE = 128
"""Tokens of a text that a model reads between two rounds, so that the stream does not stall."""

_FIRST_RECHECK, _RECHECK_PLAIN = 4, 128
"""Rounds with drafts after which a plain one is measured again: as many as all rounds before, within these bounds."""

_FOLLOW = 0.05

_ENOUGH_ROUNDS = 8
"""Rounds after which a model is judged by what it has brought, and not by the chance of its tokens."""

_WEIGHING_SHARE, _LONGEST_REST = 0.0025, 128
"""Share of the time that weighing who should draft may take where nobody should, and the most rounds until it is done
again."""

_LEARNING_SHARE, _LONGEST_PASS = 0.01, 8
"""Share of the time that learning from rounds in which only tables drafted may take, and how many of them it learns
from one of at least."""

_UNKNOWN_STEP = 0.15
"""Drafting one level takes this share of a plain round, until it is measured."""

_UNKNOWN_READING = 0.25
"""Reading a token takes this share of drafting one, until it is measured: many are read at once."""

_CATCH_UP = 16
"""Tokens that cost nothing to read: the next decode can take them in."""

_FIRST_LENGTH = 128.0
"""Tokens that a reply is expected to have before there was one."""

_READING_SHARE = 0.02
"""Share of the rest of a reply that may be spent on reading for a trial."""

_CATCH_UP_ROUNDS = 3
"""Plain rounds that catching up with the text counts for at most where a drafter is only tried."""

_ENOUGH_TO_KEEP = 32
"""A run of fewer rounds has learned nothing worth keeping."""


class _Decided(NamedTuple):
    """What ``Decision`` tells, as it was when it was decided."""

    name: str
    chances: Sequence[float]
    n_verified: int
    is_trial: bool
    prices: Snapshot
    drafting_s: float
    step_s: float | None
    n_texts: int


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

    Texts that share a decode have a chooser each, all of which know what one of them has learned. For a company of so
    many texts one further chooser decides: rows go to whoever's tokens are likeliest, and rounds, costs and trials of
    such a company are counted apart.

    Args:
        drafters: one without a model (a table) counts as free to call.
        seconds: first estimates of seconds per decode of the target, by number of rows.
        most: nodes of the largest draft.
        n_texts: how many texts share a decode.
        clock: tells seconds.

    Attributes:
        prices: what rounds cost.
    """

    name = "auto"

    def __init__(
        self,
        drafters: Sequence[Drafter],
        *,
        seconds: Mapping[int, float] | None = None,
        most: int = 9,
        n_texts: int = 1,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.most = most
        self.n_texts = n_texts
        self.prices = Prices(CostCurve(seconds), most, n_texts)
        self.candidates = [Candidate(drafter, depth=most) for drafter in drafters]
        # What decides for several texts, by their number; and the one of the last round.
        self._companies: dict[int, Chooser] = {}
        self._deciding: Chooser | None = None
        self._tables = [candidate for candidate in self.candidates if not candidate.has_model]
        self._models = [candidate for candidate in self.candidates if candidate.has_model]
        self._clock = clock
        # All seconds of this run.
        self._total_s = 0.0
        # Rounds until models are weighed again, and those since then that nobody has looked at.
        self._rest = self._n_passed = 0
        # Seconds of learning from a round with a table's draft, and such rounds since the last one.
        self._learning_s, self._n_unlearned = 0.0, 0
        # What asking drafters has saved in a round, less what it took: a running mean.
        self._saved_s = 0.0
        # What this round decided: who was asked and for how many seconds, who drafted what is verified, and who was
        # only tried, with what the best choice was expected to gain.
        self._asked: list[tuple[Candidate, float]] = []
        self._used: Candidate | None = None
        self._tried: dict[Candidate, float] = {}
        self._read: dict[Candidate, float] = {}
        # The last decision for a draft, with all that it follows from.
        self._decided: _Decided | None = None
        # What deciding took besides.
        self._choosing_s = 0.0
        self._last_name = self.name
        # Rounds of this run, the last one that drafted nothing, and those of this reply.
        self._n_rounds = self._last_plain = self._n_plain = 0
        # How long replies are, and how much of this one is written.
        self._usual_length, self._n_written = _FIRST_LENGTH, 0
        # Of earlier runs.
        self._known_rounds = 0

    # --- a reply

    @property
    def last_name(self) -> str:
        return self._last_name

    def begin(self, text: Text, sampler: Sampler) -> None:
        super().begin(text, sampler)
        self._count_passed()
        if self._n_written:
            self._usual_length += 0.2 * (self._n_written - self._usual_length)
        self._n_written = self._n_plain = self._rest = 0
        self._decided = None
        self._forget_decision()
        for candidate in self.candidates:
            candidate.begin(greedy=sampler.settings.temperature == 0)
            candidate.drafter.begin(text, sampler)

    def _forget_decision(self) -> None:
        # A round may have been interrupted before anybody learned from it.
        self._asked, self._used, self._tried, self._read = [], None, {}, {}
        self._last_name = self.name

    def draft(self, limit: int) -> Tree:
        return self._drafts([limit], self.most)[0]

    def draft_all(self, drafters: Sequence[Drafter], limits: Sequence[int], most: int) -> Sequence[Tree]:
        self._deciding = None
        if most < 1:
            return (EMPTY,) * len(drafters)
        choosers = [drafter for drafter in drafters if isinstance(drafter, Chooser)]
        self._deciding = company = self._company(choosers, most)
        if not company._rest or company._tables_pay:
            company._sit_with(choosers)
        drafts = company._drafts(limits, most)
        for chooser in choosers:
            chooser._last_name = company.last_name
            if company._used is not None:
                chooser._decided = company._decided
        return drafts

    def _drafts(self, limits: Sequence[int], most: int) -> Sequence[Tree]:
        """Draft for each text, at most so many tokens, and ``most`` for all together."""
        rests, nothing = self._rest > 0, (EMPTY,) * len(limits)
        if rests and not self._tables_pay:
            self._last_name = self.name
            return nothing
        self._forget_decision()
        began, prices = self._clock(), self.prices
        if not rests:
            # Between two weighings prices are those of the last round that was learned from.
            prices.update()
        # Drafts are compared with plain decoding: it is measured first, and now and then where drafts always pay.
        if not prices.plain_s or self._plain_is_due:
            return nothing
        most = min(most, self.most)
        limits = [min(limit, most) for limit in limits]
        best: Candidate | None = None
        verified: Sequence[Tree] = nothing
        gain = prices.plain_gain
        for table in self._tables:
            is_trial = not self._tables_pay
            if is_trial and not self._is_due(table):
                continue
            self._ask(table, limits, None)
            if is_trial:
                self._tried[table] = prices.plain_gain
            # What a table claims is known to be right or wrong without verifying it.
            drafts, gained = self._best_of(table, most, least=0)
            if gained > gain:
                best, verified, gain = table, drafts, gained
        if not rests:
            model, is_trial, instead = self._model(gain)
            if model is None:
                if best is None:
                    self._rest = self._rest_after(self._clock() - began)
            elif self._has_read(model):
                self._ask(model, limits, self._worth_more(model))
                drafts, gained = self._best_of(model, most, least=int(is_trial))
                if is_trial:
                    self._tried[model] = instead
                if best is None or gained > gain or is_trial:
                    # The round counts as the model's even where nothing of its draft is verified: it took the time.
                    best, verified = model, drafts
        self._used = best
        self._choosing_s = self._clock() - began - sum(ask_s for _, ask_s in self._asked) - sum(self._read.values())
        if best is not None:
            self._last_name = best.drafter.last_name
            self._decided = _Decided(
                best.name,
                best.chances,
                sum(map(len, verified)),
                best in self._tried,
                prices.snapshot(),
                next(ask_s for candidate, ask_s in self._asked if candidate is best),
                self._step_s(best) if best.has_model else None,
                self.n_texts,
            )
        return verified

    def _rest_after(self, seconds: float) -> int:
        """Return after how many rounds models are weighed again: it must take little of their time."""
        weighing_s = seconds - sum(ask_s for _, ask_s in self._asked)
        return min(ceil(weighing_s / (_WEIGHING_SHARE * self.prices.plain_s)), _LONGEST_REST)

    def _ask(self, candidate: Candidate, limits: Sequence[int], worth_more: WorthMore | None) -> None:
        started = self._clock()
        drafters = candidate.drafters
        if worth_more is None and len(drafters) == 1:
            candidate.drafts = (candidate.drafter.draft(limits[0]),)
        else:
            candidate.drafts = candidate.drafter.draft_all_while(drafters, limits, worth_more or always)
        self._asked.append((candidate, self._clock() - started))

    def _worth_more(self, model: Candidate) -> WorthMore:
        """Return what tells whether a further level of a model's drafts is worth its time."""
        known: list[list[float]] = [[] for _ in range(self.n_texts)]

        def worth_more(drafts: Sequence[Tree]) -> bool:
            depths = [max(draft.depths, default=-1) for draft in drafts]
            depth, n, ends = max(depths), 0, list[float]()
            for text, draft in enumerate(drafts):
                if depths[text] == depth:
                    known[text] = values = model.values(draft, known[text], text)
                    value = max(value for value, at in zip(values, draft.depths, strict=True) if at == depth)
                    ends.append(value)
                    n += sum(other >= value for other in values)
            ends.sort(reverse=True)
            # Whether those go on that are likeliest.
            return any(
                self._is_worth_more(model, sum(ends[:n_ends]), n, depth + 1, n_ends)
                for n_ends in range(1, len(ends) + 1)
            )

        return worth_more

    def _best_of(self, candidate: Candidate, most: int, *, least: int) -> tuple[Sequence[Tree], float]:
        """Return the parts of drafts that are worth verifying, of at least so many nodes, and what that gains."""
        drafts, prices = candidate.drafts, self.prices
        if not least and candidate.best_chance() <= prices.least_chance:
            candidate.verified, candidate.expected = (EMPTY,) * self.n_texts, float(self.n_texts)
            return candidate.verified, prices.plain_gain
        values = [candidate.values(draft, text=text) for text, draft in enumerate(drafts)]
        candidate.chances = sorted(chain.from_iterable(values), reverse=True)
        n, gain = self._best_size(candidate.chances[:most])
        n = max(n, least)
        candidate.verified = best_of_all(drafts, values, n)
        candidate.expected = self.n_texts + sum(candidate.chances[:n])
        return candidate.verified, gain

    def _best_size(self, values: Iterable[float]) -> tuple[int, float]:
        return self.prices.best_size(values)

    def _model(self, gain: float) -> tuple[Candidate | None, bool, float]:
        """Return the model that should draft now, whether only to try it, and what the best choice should gain."""
        chosen = None
        for model in self._models:
            expected = self._expected_gain(model)
            if expected > gain and self._pays_to_read(model, expected - gain):
                chosen, gain = model, expected
        for model in self._models:
            if model is not chosen and self._is_due(model) and self._may_read_for_a_trial(model):
                return model, True, gain
        return chosen, False, gain

    def _has_read(self, model: Candidate) -> bool:
        """Return whether a model can draft now; if not, it has read some more of the text."""
        n_unread, started = model.n_unread, self._clock()
        ready = all([drafter.read(_PIECE) for drafter in model.drafters])
        self._read[model] = self._clock() - started
        model.learn_reading(n_unread - model.n_unread, self._read[model])
        return ready

    # --- the rule

    def _is_worth_more(self, model: Candidate, value: float, n: int, depth: int, n_ends: int = 1) -> bool:
        """Return whether drafting another level pays, or several.

        Args:
            value: the chances, together, that the nodes which would be continued are accepted.
            n: nodes of the drafts that are worth as much.
            depth: levels that they have.
            n_ends: how many would be continued.
        """
        prices, gained = self.prices, 0.0
        step = prices.rate * self._step_s(model)
        for more in range(1, min((self.most - n) // n_ends, len(model.reach) - depth) + 1):
            value *= model.reach[depth + more - 1]
            gained += value * prices.share
            if gained > more * step + prices.further(n, more * n_ends):
                return True
        return False

    def _expected_gain(self, model: Candidate) -> float:
        """Return what a round with a model's draft gains: as its last rounds did, before them by its chance."""
        prices = self.prices
        seen, n_rounds = model.seen_gain(self._n_rounds, prices.rate)
        trust = min(1.0, n_rounds / _ENOUGH_ROUNDS)
        if trust == 1:
            return seen
        n_texts = self.n_texts
        step, tokens, reached, guess = prices.rate * self._step_s(model), float(n_texts), 1.0, float("-inf")
        for depth in range(1, min(self.most // n_texts, len(model.reach)) + 1):
            reached *= model.reach[depth - 1]
            tokens += reached * n_texts
            guess = max(guess, prices.gain(depth * n_texts, tokens) - depth * step)
        return trust * seen + (1 - trust) * guess

    @property
    def _plain_is_due(self) -> bool:
        since, before = self._n_rounds - self._last_plain, self._last_plain
        # What a decode of several texts takes is known only once there was one.
        return (self.n_texts > 1 and not self._n_rounds) or since >= min(_RECHECK_PLAIN, max(_FIRST_RECHECK, before))

    @property
    def _tables_pay(self) -> bool:
        """Whether drafts save more time than asking for them takes: then tables are asked in every round."""
        return self._saved_s > 0

    def _is_due(self, candidate: Candidate) -> bool:
        return candidate.is_due(self._total_s)

    @property
    def _left(self) -> float:
        """Tokens that are expected of the reply from here on. Long ones are taken to go on as all replies do."""
        room = self.text.room
        return (self._usual_length if room is None else min(room, self._usual_length)) * self.n_texts

    def _pays_to_read(self, model: Candidate, gained: float) -> bool:
        """Return whether a model that gains so many tokens a round pays, if it has to read others first."""
        n_unread = model.n_unread
        _, n_tokens = model.usual_round or (0.0, 0.0)
        # While it reads, a piece between two rounds, the reply goes on. A round takes as long as a plain one at least.
        drafted = self._left - n_unread / _PIECE
        return self._reading_cost(model, n_unread) <= drafted * gained / max(n_tokens, 1 + gained)

    def _may_read_for_a_trial(self, model: Candidate) -> bool:
        """Return whether reading what it has missed takes little of the rest of the reply."""
        return self._reading_cost(model, model.n_unread) <= _READING_SHARE * self._left

    def _reading_cost(self, model: Candidate, n_unread: int) -> float:
        """Return tokens that the time of reading would have brought."""
        if n_unread < _CATCH_UP:
            return 0.0
        token_s = model.read_s if model.read_s is not None else _UNKNOWN_READING * self._step_s(model)
        return self.prices.rate * token_s * n_unread

    def _step_s(self, model: Candidate) -> float:
        return model.step_s if model.step_s is not None else _UNKNOWN_STEP * self.prices.plain_s

    # --- what a round teaches

    def learn(self, done: Round) -> None:
        self._learn([done])

    def learn_all(self, drafters: Sequence[Drafter], rounds: Sequence[Round]) -> Sequence[Exception | None]:
        if len(drafters) == 1:
            return super().learn_all(drafters, rounds)
        company, used = self._deciding, None
        if company is not None:
            used = company._used.name if company._used is not None else None
            company._learn(rounds)
        for chooser, done in zip(drafters, rounds, strict=True):
            if isinstance(chooser, Chooser):
                chooser._n_written += len(done.tokens)
                if used is None:
                    chooser._n_plain += 1
                    continue
                for candidate in chooser.candidates:
                    candidate.n_chosen += candidate.name == used
        return [None] * len(drafters)

    def _company(self, choosers: Sequence[Chooser], most: int) -> Chooser:
        """Return what decides for several texts, of which each has a chooser, with their drafters."""
        first = len(choosers)
        company = self._companies.get(first)
        if company is None:
            # Its narrowest decode has a row of each: what is measured is compared with that.
            curve = self.prices.curve
            known = {int(n): seconds for n, seconds in curve.as_json().items()}
            seconds = {first: curve(first)} | {n: seconds for n, seconds in known.items() if n > first}
            mine = [candidate for candidate in self.candidates if candidate.drafter.most_texts >= first]
            drafters = [candidate.drafter for candidate in mine]
            company = Chooser(drafters, seconds=seconds, most=max(most, 1), n_texts=first, clock=self._clock)
            company.prices.begin_with(self.prices.round_s * first)
            for candidate, single in zip(company.candidates, mine, strict=True):
                candidate.shares(single)
            self._companies[first] = company
        return company

    def _sit_with(self, choosers: Sequence[Chooser]) -> None:
        """Draft with the drafters of these choosers, each of a text."""
        self.text, self._usual_length = choosers[0].text, choosers[0]._usual_length
        for candidate in self.candidates:
            candidate.sit_with([each for other in choosers for each in other.candidates if each.name == candidate.name])

    def _let_go(self, closed: Sequence[Candidate]) -> None:
        """Hold nothing of a text whose drafters are closed: the next decision is for others."""
        drafters = {id(candidate.drafter) for candidate in closed}
        if any(id(drafter) in drafters for candidate in self.candidates for drafter in candidate.drafters):
            self.text = Text()
            self._forget_decision()
            for candidate in self.candidates:
                candidate.sit_with(())

    def join(self, other: Chooser) -> None:
        """Share what another chooser learns, which drafts for another text of the same target."""
        self.prices, self._companies = other.prices, other._companies
        self._usual_length, self._saved_s = other._usual_length, other._saved_s
        known = {candidate.name: candidate for candidate in other.candidates}
        for candidate in self.candidates:
            if candidate.name in known:
                candidate.shares(known[candidate.name])

    def _learn(self, rounds: Sequence[Round]) -> None:
        """Learn from a round, of which each text has a part."""
        if self._rest:
            self._rest -= 1
            drafted = any([done.drafted for done in rounds]) or any(any(each.drafts) for each, _ in self._asked)
            if self._rest and not drafted:
                # Between two weighings plain rounds are alike: learning from each would take longer than it is worth.
                self._n_passed += 1
                if self._asked:
                    self._learn_saved(Round.of_all(rounds), 0.0)
                    self._asked = []
                return
        done = Round.of_all(rounds)
        self._count_passed()
        self._total_s += done.draft_s + done.verify_s + done.sample_s
        self._n_rounds += 1
        self._n_written += len(done.tokens)
        if not done.drafted:
            self._last_plain = self._n_rounds
            self._n_plain += self._used is None
        elif self._used is not None and self._may_pass():
            self._used.n_chosen += 1
            self._asked, self._used = [], None
            return
        began = self._clock()
        self.prices.learn(done)
        if self._asked:
            self._learn_drafts(done, rounds)
        if done.drafted:
            self._n_unlearned = 0
            self._learning_s = follow(self._learning_s, self._clock() - began)

    def _may_pass(self) -> bool:
        """Return whether nothing has to be learned from a round with a draft: with small models learning takes long."""
        if self._tried or any(candidate.has_model for candidate, _ in self._asked):
            return False
        self._n_unlearned += 1
        every = ceil(self._learning_s / (_LEARNING_SHARE * self.prices.plain_s))
        return self._n_unlearned < min(every, _LONGEST_PASS)

    def _count_passed(self) -> None:
        """Count the rounds that nobody has looked at."""
        n, self._n_passed = self._n_passed, 0
        if n:
            self.prices.pass_over(n)
            self._total_s += n * self.prices.plain_s
            self._n_rounds += n
            self._n_written += n
            self._n_plain += n
            self._last_plain = self._n_rounds

    def _learn_drafts(self, done: Round, rounds: Sequence[Round]) -> None:
        """Learn what those who were asked in a round have brought, and what that took."""
        prices, decided = self.prices, (self.prices.rate, self.prices.plain_gain)
        prices.update()
        # Choosing takes time as well: with small models it decides. A round that was disturbed must not count.
        choosing_s = min(max(0.0, self._choosing_s), prices.plain_s)
        self._learn_saved(done, choosing_s)
        for candidate, ask_s in self._asked:
            for text, own in enumerate(rounds):
                candidate.learn_outcome(own.tokens, text)
            usual_s = min(ask_s, prices.plain_s)
            if candidate.has_model:
                usual_s = candidate.learn_step(self._n_rounds, ask_s, assumed_s=self._step_s(candidate))
            self._learn_round(candidate, done, rounds, choosing_s + usual_s)
            if candidate in self._tried:
                self._learn_trial(candidate, done, ask_s, usual_s, choosing_s, decided)
            candidate.drafts = (EMPTY,) * self.n_texts
        if self._used is not None:
            self._used.n_chosen += 1
        # In the next round there may be no room for a draft: nothing of this one may be learned again.
        self._asked, self._used, self._tried, self._read = [], None, {}, {}

    def _learn_saved(self, done: Round, choosing_s: float) -> None:
        """Learn what asking has saved in a round, by tokens half as they came and half as they were expected.

        What models are tried for says nothing of that.
        """
        if any(candidate.has_model for candidate in self._tried):
            return
        plain_s, n_tokens = self.prices.plain_s, len(done.tokens)
        saved_s = -sum(min(ask_s, plain_s) for _, ask_s in self._asked)
        if self._used is not None:
            n_plain = (n_tokens + self._used.expected) / 2 / self.n_texts
            saved_s += n_plain * plain_s - self.prices.usual_s(done.n_rows, n_tokens) - choosing_s
        self._saved_s += _FOLLOW * (saved_s - self._saved_s)

    def _learn_round(self, candidate: Candidate, done: Round, rounds: Sequence[Round], drafting_s: float) -> None:
        """Learn what a round with a candidate's draft wrote, and what it took."""
        if candidate is self._used:
            n_tokens, seconds = len(done.tokens), done.verify_s + done.sample_s
        elif candidate.has_model:
            # A table's draft was better: the round that there would have been without that.
            n_tokens = self.n_texts + sum(
                len(draft.descend(own.tokens)) for draft, own in zip(candidate.verified, rounds, strict=True)
            )
            n_rows = done.n_rows - sum(done.drafted) + sum(map(len, candidate.verified))
            seconds = self.prices.usual_s(n_rows, n_tokens)
        else:
            return
        candidate.learn_round(self._n_rounds, n_tokens=n_tokens, seconds=seconds + drafting_s)

    def _learn_trial(
        self,
        candidate: Candidate,
        done: Round,
        ask_s: float,
        usual_s: float,
        choosing_s: float,
        decided: tuple[float, float],
    ) -> None:
        """Learn what a trial has lost against the best choice, by the prices at which that was decided.

        Args:
            ask_s, usual_s: seconds of drafting, and what it usually takes at most.
        """
        prices, (rate, plain_gain) = self.prices, decided
        gain = plain_gain - rate * usual_s
        if candidate is self._used:
            n_tokens = len(done.tokens)
            gain = n_tokens - rate * (prices.usual_s(done.n_rows, n_tokens) + choosing_s + usual_s)
        lost_s = (self._tried[candidate] - gain) / max(rate, 1e-9)
        if not candidate.has_model:
            # A table's draft is verified only where that pays: its trial costs no more than asking takes.
            lost_s = min(lost_s, ask_s)
        # What it took to catch up with the text counts as a few rounds at most: else it is never tried.
        caught_up_s = min(self._read.get(candidate, 0.0) + ask_s - usual_s, _CATCH_UP_ROUNDS * prices.plain_s)
        candidate.tried(self._total_s, lost_s=lost_s, caught_up_s=caught_up_s, round_s=prices.plain_s)

    @property
    def choices(self) -> dict[str, Choice]:
        found = {}
        self._count_passed()
        self.prices.update()
        if self.prices.plain_s > 0:
            found[_PLAIN] = Choice(rounds=self._n_plain, round_s=self.prices.plain_s, tokens_per_round=1.0)
        for candidate in self.candidates:
            round_s, n_tokens = candidate.usual_round or (None, None)
            found[candidate.name] = Choice(rounds=candidate.n_chosen, round_s=round_s, tokens_per_round=n_tokens)
        return found

    @property
    def decision(self) -> Decision | None:
        if self._decided is None:
            return None
        decided = self._decided
        costs, round_s, token_s, rate = decided.prices
        return Decision(
            drafter=decided.name,
            n_texts=decided.n_texts,
            chances=tuple(decided.chances[: len(costs) - 1]),
            n_verified=decided.n_verified,
            is_trial=decided.is_trial,
            decodes_s=tuple(costs),
            round_s=round_s,
            token_s=token_s,
            drafting_s=decided.drafting_s,
            step_s=decided.step_s,
            rate=rate,
        )

    @property
    def has_learned(self) -> bool:
        """Whether this run has learned enough to be worth keeping."""
        self._count_passed()
        return self._n_rounds >= _ENOUGH_TO_KEEP

    def as_json(self) -> dict[str, Any]:
        """Return what it has learned of this device and of its drafters, as ``recall`` takes it."""
        prices = self.prices
        self._count_passed()
        return {
            "seconds": prices.curve.as_json(),
            "own": {"round_s": prices.round_s, "token_s": prices.token_s},
            "rounds": self._known_rounds + self._n_rounds,
            "drafters": {candidate.name: candidate.as_json() for candidate in self.candidates},
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
        self._known_rounds = n_rounds
        for candidate in self.candidates:
            if candidate.name in learned["drafters"]:
                candidate.recall(learned["drafters"][candidate.name])

    # --- its drafters

    @property
    def followed(self) -> Mapping[str, Follower]:
        found: dict[str, Follower] = {}
        for candidate in self.candidates:
            # Drafters may share a model; then they follow one text.
            known = {id(follower) for follower in found.values()}
            found |= {name: one for name, one in candidate.drafter.followed.items() if id(one) not in known}
        return found

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
        return {name: state for candidate in self.candidates for name, state in candidate.drafter.save().items()}

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        for candidate in self.candidates:
            candidate.drafter.restore(states, text)

    def close(self) -> None:
        for company in self._companies.values():
            company._let_go(self.candidates)
        for candidate in self.candidates:
            candidate.drafter.close()

    @property
    def held_bytes(self) -> int:
        return sum(candidate.drafter.held_bytes for candidate in self.candidates)
