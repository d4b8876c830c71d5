"""The rule by which a drafter, or none, is chosen for a round. ``docs/choosing.md`` states it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import ceil
from typing import Protocol

from edge_spec.speculation.chooser.candidate import Candidate
from edge_spec.speculation.chooser.curve import CostCurve
from edge_spec.speculation.chooser.prices import Prices, follow
from edge_spec.speculation.drafters.base import Decision, Drafter, WorthMore, always
from edge_spec.speculation.round import Round
from edge_spec.speculation.tree import EMPTY, Tree, best_of_all

__all__ = ["Decider", "DraftedText"]

_PIECE = 128
"""Tokens of a text that a model reads between two rounds, so that the stream does not stall."""

_FIRST_RECHECK, _RECHECK_PLAIN = 4, 128
"""Rounds with drafts after which a plain one is measured again: as many as all rounds before, within these bounds."""

_FOLLOW = 0.05

_ENOUGH_ROUNDS = 8
"""Rounds after which a model is judged by what it has brought, and not by the chance of its tokens."""

_WEIGHING_SHARE, _LONGEST_REST = 0.0025, 128
"""Where no draft pays: the most of the time that looking for one may take, and the most rounds until the next look."""

_LEARNING_SHARE, _LONGEST_PASS = 0.01, 8
"""Share of the time that learning from rounds in which only tables drafted may take, and how many of them it learns
from one of at least."""

_UNKNOWN_STEP = 0.15
"""Drafting one level takes this share of a plain round, until it is measured."""

_UNKNOWN_READING = 0.25
"""Reading a token takes this share of drafting one, until it is measured: many are read at once."""

_CATCH_UP = 16
"""Tokens that cost nothing to read: the next decode can take them in."""

_READING_SHARE = 0.02
"""Share of the rest of a reply that may be spent on reading for a trial."""

_CATCH_UP_ROUNDS = 3
"""Plain rounds that catching up with the text counts for at most where a drafter is only tried."""


class DraftedText(Protocol):
    """A text, as it is seen here.

    Attributes:
        drafters: its drafters, by name.
        is_greedy: whether it is written at temperature 0, where claims come true more often.
    """

    drafters: Mapping[str, Drafter]
    is_greedy: bool

    @property
    def n_left(self) -> float:
        """Tokens that are expected of the reply from here on."""


class Decider:
    """Decides who drafts for texts that share a decode, by what rounds of so many texts have cost and brought.

    Rows go to whoever's tokens are likeliest. What drafts claim and what comes true of it is the same for any number of
    texts; costs, rounds and trials are counted for each number apart.

    Args:
        drafters: those of one text.
        prices: what rounds cost.
        clock: tells seconds.
        like: decides for another number of texts.

    Attributes:
        candidates: what is known of the drafters.
        used: whose draft was verified in this round; None if there is none.
        decided: returns the last decision for a draft.
        n_rounds: of this run.
    """

    def __init__(
        self, drafters: Sequence[Drafter], prices: Prices, clock: Callable[[], float], like: Decider | None = None
    ) -> None:
        self.prices, self.n_texts, self.most = prices, prices.n_texts, prices.most
        known = {candidate.name: candidate for candidate in like.candidates} if like is not None else {}
        self.candidates: list[Candidate] = [
            Candidate(each, depth=prices.most, like=known.get(each.name)) for each in drafters
        ]
        self._tables = [candidate for candidate in self.candidates if not candidate.has_model]
        self._models = [candidate for candidate in self.candidates if candidate.has_model]
        self._clock = clock
        self._texts: Sequence[DraftedText] = ()
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
        self.used: Candidate | None = None
        self._tried: dict[Candidate, float] = {}
        self._read: dict[Candidate, float] = {}
        self.decided: Callable[[], Decision] | None = None
        # What deciding took besides.
        self._choosing_s = 0.0
        # Rounds of this run, and the last one that drafted nothing.
        self.n_rounds = self._last_plain = 0

    def for_several(self, drafters: Sequence[Drafter], n_texts: int, most: int) -> Decider:
        """Return what decides for several texts, at first by what is known of one."""
        # Its narrowest decode has a row of each: what is measured is compared with that.
        curve = self.prices.curve
        known = {int(n): seconds for n, seconds in curve.as_json().items()}
        seconds = {n_texts: curve(n_texts)} | {n: seconds for n, seconds in known.items() if n > n_texts}
        prices = Prices(CostCurve(seconds), most, n_texts)
        prices.begin_with(self.prices.round_s * n_texts)
        return type(self)([each for each in drafters if each.most_texts >= n_texts], prices, self._clock, like=self)

    def begins(self) -> None:
        """A reply begins: models are weighed again."""
        self.count_passed()
        self._rest = 0
        self.forget()

    def forget(self) -> None:
        """Forget the last round, which may have been interrupted before anybody learned from it, and its texts."""
        self._texts = ()
        for candidate in self.candidates:
            candidate.draft_for((), ())
        self._forget_decision()

    def _forget_decision(self) -> None:
        self._asked, self.used, self._tried, self._read = [], None, {}, {}

    def draft(self, texts: Sequence[DraftedText], limits: Sequence[int], most: int) -> Sequence[Tree]:
        """Draft for each text, at most so many tokens, and ``most`` for all together."""
        rests, nothing = self._rest > 0, (EMPTY,) * len(limits)
        if self.rests:
            return nothing
        self._forget_decision()
        self._texts = texts
        for candidate in self.candidates:
            candidate.draft_for([text.drafters[candidate.name] for text in texts], [text.is_greedy for text in texts])
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
            self._ask(table, limits, always)
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
        self.used = best
        self._choosing_s = self._clock() - began - sum(ask_s for _, ask_s in self._asked) - sum(self._read.values())
        if best is not None:
            self.decided = self._decision(best, sum(map(len, verified)))
        return verified

    def _decision(self, best: Candidate, n_verified: int) -> Callable[[], Decision]:
        """Return what tells of a decision, by the numbers of now."""
        prices, chances = self.prices, best.chances
        costs, round_s, token_s, rate = prices.costs, prices.round_s, prices.token_s, prices.rate
        is_trial, step_s = best in self._tried, self._step_s(best) if best.has_model else None
        drafting_s = next(ask_s for candidate, ask_s in self._asked if candidate is best)
        return lambda: Decision(
            drafter=best.name,
            n_texts=self.n_texts,
            chances=tuple(chances[: len(costs) - 1]),
            n_verified=n_verified,
            is_trial=is_trial,
            decodes_s=tuple(costs),
            round_s=round_s,
            token_s=token_s,
            drafting_s=drafting_s,
            step_s=step_s,
            rate=rate,
        )

    def _rest_after(self, seconds: float) -> int:
        """Return after how many rounds models are weighed again: it must take little of their time."""
        weighing_s = seconds - sum(ask_s for _, ask_s in self._asked)
        return min(ceil(weighing_s / (_WEIGHING_SHARE * self.prices.plain_s)), _LONGEST_REST)

    def _ask(self, candidate: Candidate, limits: Sequence[int], worth_more: WorthMore) -> None:
        started = self._clock()
        candidate.drafts = candidate.drafter.draft_all_while(candidate.drafters, limits, worth_more)
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
            # Further levels may pay for the likeliest ends alone, so every number of them is tried.
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
        seen, n_rounds = model.seen_gain(self.n_rounds, prices.rate)
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
        since, before = self.n_rounds - self._last_plain, self._last_plain
        # What a decode of several texts takes is known only once there was one.
        return (self.n_texts > 1 and not self.n_rounds) or since >= min(_RECHECK_PLAIN, max(_FIRST_RECHECK, before))

    @property
    def rests(self) -> bool:
        """Whether nothing is drafted, nor weighed, in this round."""
        return self._rest > 0 and not self._tables_pay

    @property
    def _tables_pay(self) -> bool:
        """Whether drafts save more time than asking for them takes: then tables are asked in every round."""
        return self._saved_s > 0

    def _is_due(self, candidate: Candidate) -> bool:
        return candidate.is_due(self._total_s)

    @property
    def _left(self) -> float:
        """Tokens that are expected of the reply from here on. Long ones are taken to go on as all replies do."""
        return self._texts[0].n_left * self.n_texts

    def _pays_to_read(self, model: Candidate, gained: float) -> bool:
        """Return whether a model that gains so many tokens a round pays, if it has to read others first."""
        n_unread = model.n_unread
        _, n_tokens = model.usual_round(greedy=self._texts[0].is_greedy) or (0.0, 0.0)
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

    def learn(self, rounds: Sequence[Round]) -> None:
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
        self.count_passed()
        self._total_s += done.draft_s + done.verify_s + done.sample_s
        self.n_rounds += 1
        if not done.drafted:
            self._last_plain = self.n_rounds
        elif self.used is not None and self._may_pass():
            self._asked, self.used = [], None
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

    def count_passed(self) -> None:
        """Count the rounds that nobody has looked at."""
        n, self._n_passed = self._n_passed, 0
        if n:
            self.prices.pass_over(n)
            self._total_s += n * self.prices.plain_s
            self.n_rounds += n
            self._last_plain = self.n_rounds

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
                usual_s = candidate.learn_step(self.n_rounds, ask_s, assumed_s=self._step_s(candidate))
            self._learn_round(candidate, done, rounds, choosing_s + usual_s)
            if candidate in self._tried:
                self._learn_trial(candidate, done, ask_s, usual_s, choosing_s, decided)
            candidate.drafts = (EMPTY,) * self.n_texts
        # In the next round there may be no room for a draft: nothing of this one may be learned again.
        self._forget_decision()

    def _learn_saved(self, done: Round, choosing_s: float) -> None:
        """Learn what asking has saved in a round, by tokens half as they came and half as they were expected.

        What models are tried for says nothing of that.
        """
        if any(candidate.has_model for candidate in self._tried):
            return
        plain_s, n_tokens = self.prices.plain_s, len(done.tokens)
        saved_s = -sum(min(ask_s, plain_s) for _, ask_s in self._asked)
        if self.used is not None:
            n_plain = (n_tokens + self.used.expected) / 2 / self.n_texts
            saved_s += n_plain * plain_s - self.prices.usual_s(done.n_rows, n_tokens) - choosing_s
        self._saved_s += _FOLLOW * (saved_s - self._saved_s)

    def _learn_round(self, candidate: Candidate, done: Round, rounds: Sequence[Round], drafting_s: float) -> None:
        """Learn what a round with a candidate's draft wrote, and what it took."""
        if candidate is self.used:
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
        candidate.learn_round(self.n_rounds, n_tokens=n_tokens, seconds=seconds + drafting_s)

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
        if candidate is self.used:
            n_tokens = len(done.tokens)
            gain = n_tokens - rate * (prices.usual_s(done.n_rows, n_tokens) + choosing_s + usual_s)
        lost_s = (self._tried[candidate] - gain) / max(rate, 1e-9)
        if not candidate.has_model:
            # A table's draft is verified only where that pays: its trial costs no more than asking takes.
            lost_s = min(lost_s, ask_s)
        # What it took to catch up with the text counts as a few rounds at most: else it is never tried.
        caught_up_s = min(self._read.get(candidate, 0.0) + ask_s - usual_s, _CATCH_UP_ROUNDS * prices.plain_s)
        candidate.tried(self._total_s, lost_s=lost_s, caught_up_s=caught_up_s, round_s=prices.plain_s)
