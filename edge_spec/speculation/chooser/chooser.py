"""Several drafters, of which every round uses the one that pays most, or none. ``docs/choosing.md`` states the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from time import perf_counter
from typing import Any

from edge_spec.sampling import Sampler
from edge_spec.speculation.chooser.candidate import Candidate
from edge_spec.speculation.chooser.curve import CostCurve
from edge_spec.speculation.chooser.prices import Prices, Snapshot
from edge_spec.speculation.chooser.records import at_least_zero, positive, whole
from edge_spec.speculation.drafters.base import Choice, Decision, Drafter
from edge_spec.speculation.follower import Follower
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree

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

_AS_MANY_ROUNDS = 1024
"""Rounds that the speed-up of earlier runs counts for at most."""


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

    Args:
        drafters: one without a model (a table) counts as free to call.
        seconds: first estimates of seconds per decode of the target, by number of rows.
        only_shape: whether these are another model's, see ``CostCurve``.
        most: nodes of the largest draft.
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
        only_shape: bool = False,
        most: int = 9,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.most = most
        self.prices = Prices(CostCurve(seconds, only_shape=only_shape), most)
        self.candidates = [Candidate(drafter, depth=most) for drafter in drafters]
        self._tables = [candidate for candidate in self.candidates if not candidate.has_model]
        self._models = [candidate for candidate in self.candidates if candidate.has_model]
        self._clock = clock
        # All seconds of this run.
        self._total_s = 0.0
        # Rounds until models are weighed again, and those since then that nobody has looked at.
        self._rest = self._n_passed = 0
        # What asking drafters has saved in a round, less what it took: a running mean.
        self._saved_s = 0.0
        # What this round decided: who was asked and for how many seconds, who drafted what is verified, and who was
        # only tried, with what the best choice was expected to gain.
        self._asked: list[tuple[Candidate, float]] = []
        self._used: Candidate | None = None
        self._tried: dict[Candidate, float] = {}
        self._read: dict[Candidate, float] = {}
        # The last decision for a draft: whose, how much of it, whether as a trial, and at which prices.
        self._decided: tuple[Candidate, int, bool, Snapshot] | None = None
        self._drafting_s = 0.0
        # What deciding took besides.
        self._choosing_s = 0.0
        self._last_name = self.name
        # Rounds of this run, the last one that drafted nothing, and those of this reply.
        self._n_rounds = self._last_plain = self._n_plain = 0
        # How long replies are, and how much of this one is written.
        self._usual_length, self._n_written = _FIRST_LENGTH, 0
        self._known_rounds, self._known_speed_up = 0, 1.0

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
        rests = self._rest > 0
        if rests and not self._tables_pay:
            self._last_name = self.name
            return EMPTY
        self._forget_decision()
        began, prices = self._clock(), self.prices
        prices.update()
        # Drafts are compared with plain decoding: it is measured first, and now and then where drafts always pay.
        if not prices.plain_s or self._plain_is_due:
            return EMPTY
        limit = min(limit, self.most)
        best, verified, gain = None, EMPTY, prices.plain_gain
        for table in self._tables:
            is_trial = not self._tables_pay
            if is_trial and not self._is_due(table):
                continue
            table.draft = self._ask(table, lambda table=table: table.drafter.draft(limit))  # type: ignore[misc]
            if is_trial:
                self._tried[table] = prices.plain_gain
            # What a table claims is known to be right or wrong without verifying it.
            draft, gained = self._best_of(table, least=0)
            if gained > gain:
                best, verified, gain = table, draft, gained
        if not rests:
            model, is_trial, instead = self._model(gain)
            if model is None:
                if best is None or self._tables_pay:
                    self._rest = self._rest_after(self._clock() - began)
            elif self._has_read(model):
                model.draft = self._ask(model, lambda: self._drafted(model, limit))
                draft, gained = self._best_of(model, least=int(is_trial))
                if is_trial:
                    self._tried[model] = instead
                if best is None or gained > gain or is_trial:
                    # The round counts as the model's even where nothing of its draft is verified: it took the time.
                    best, verified = model, draft
        self._used = best
        self._choosing_s = self._clock() - began - sum(ask_s for _, ask_s in self._asked) - sum(self._read.values())
        if best is not None:
            self._last_name = best.drafter.last_name
            self._decided = best, len(verified), best in self._tried, prices.snapshot()
            self._drafting_s = next(ask_s for candidate, ask_s in self._asked if candidate is best)
        return verified

    def _rest_after(self, seconds: float) -> int:
        """Return after how many rounds models are weighed again: it must take little of their time."""
        weighing_s = seconds - sum(ask_s for _, ask_s in self._asked)
        return min(ceil(weighing_s / (_WEIGHING_SHARE * self.prices.plain_s)), _LONGEST_REST)

    def _ask(self, candidate: Candidate, drafted: Callable[[], Tree]) -> Tree:
        started = self._clock()
        draft = drafted()
        self._asked.append((candidate, self._clock() - started))
        return draft

    def _drafted(self, model: Candidate, limit: int) -> Tree:
        """Return a model's draft, as deep as every further level is worth its time."""
        known: list[float] = []

        def worth_more(draft: Tree) -> bool:
            known[:] = model.values(draft, known)
            depth = max(draft.depths)
            value = max(value for value, at in zip(known, draft.depths, strict=True) if at == depth)
            return self._is_worth_more(model, value, sum(other >= value for other in known), depth + 1)

        return model.drafter.draft_while(limit, worth_more)

    def _best_of(self, candidate: Candidate, *, least: int) -> tuple[Tree, float]:
        """Return the part of a draft that is worth verifying, of at least so many nodes, and what that gains."""
        draft, values = candidate.draft, candidate.values(candidate.draft)
        n, gain = self._best_size(values)
        n = max(n, least)
        candidate.chances = sorted(values, reverse=True)
        best = draft.first(n) if draft.is_sequence else draft.valued(values).best(n)
        candidate.verified = best
        candidate.expected = 1 + (sum(values[:n]) if draft.is_sequence else sum(best.values))
        return best, gain

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
        n_unread, started = model.drafter.n_unread(), self._clock()
        ready = model.drafter.read(_PIECE)
        self._read[model] = self._clock() - started
        model.learn_reading(n_unread - model.drafter.n_unread(), self._read[model])
        return ready

    # --- the rule

    def _is_worth_more(self, model: Candidate, value: float, n: int, depth: int) -> bool:
        """Return whether drafting another level pays, or several.

        Args:
            value: the chance that the node which would be continued is accepted.
            n: nodes of the draft that are worth as much.
            depth: levels that it has.
        """
        prices, gained = self.prices, 0.0
        step = prices.rate * self._step_s(model)
        for more in range(1, self.most - max(n, depth) + 1):
            value *= model.reach[depth + more - 1]
            gained += value * prices.share
            if gained > more * step + prices.further(n, more):
                return True
        return False

    def _expected_gain(self, model: Candidate) -> float:
        """Return what a round with a model's draft gains: as its last rounds did, before them by its chance."""
        prices = self.prices
        seen, n_rounds = model.seen_gain(self._n_rounds, prices.rate)
        trust = min(1.0, n_rounds / _ENOUGH_ROUNDS)
        if trust == 1:
            return seen
        step, tokens, reached, guess = prices.rate * self._step_s(model), 1.0, 1.0, float("-inf")
        for n in range(1, self.most + 1):
            reached *= model.reach[n - 1]
            tokens += reached
            guess = max(guess, prices.gain(n, tokens) - n * step)
        return trust * seen + (1 - trust) * guess

    @property
    def _plain_is_due(self) -> bool:
        since, before = self._n_rounds - self._last_plain, self._last_plain
        return since >= min(_RECHECK_PLAIN, max(_FIRST_RECHECK, before))

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
        return self._usual_length if room is None else min(room, self._usual_length)

    def _pays_to_read(self, model: Candidate, gained: float) -> bool:
        """Return whether a model that gains so many tokens a round pays, if it has to read others first."""
        n_unread = model.drafter.n_unread()
        _, n_tokens = model.usual_round or (0.0, 0.0)
        # While it reads, a piece between two rounds, the reply goes on. A round takes as long as a plain one at least.
        drafted = self._left - n_unread / _PIECE
        return self._reading_cost(model, n_unread) <= drafted * gained / max(n_tokens, 1 + gained)

    def _may_read_for_a_trial(self, model: Candidate) -> bool:
        """Return whether reading what it has missed takes little of the rest of the reply."""
        return self._reading_cost(model, model.drafter.n_unread()) <= _READING_SHARE * self._left

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
        if self._rest:
            self._rest -= 1
            if self._rest and not self._asked and not done.drafted:
                # Between two weighings plain rounds are alike: learning from each would take longer than it is worth.
                self._n_passed += 1
                return
        self._count_passed()
        self.prices.learn(done)
        self._total_s += done.draft_s + done.verify_s + done.sample_s
        self._n_rounds += 1
        self._n_written += len(done.tokens)
        if not done.drafted:
            self._last_plain = self._n_rounds
            self._n_plain += self._used is None
        if self._asked:
            self._learn_drafts(done)

    def _count_passed(self) -> None:
        """Count the rounds that nobody has looked at."""
        n, self._n_passed = self._n_passed, 0
        if n:
            self.prices.pass_over(n)
            self._total_s += n * self.prices.plain_s
            self._n_rounds += n
            self._n_written += n
            self._n_plain += n

    def _learn_drafts(self, done: Round) -> None:
        """Learn what those who were asked in a round have brought, and what that took."""
        prices, decided = self.prices, (self.prices.rate, self.prices.plain_gain)
        prices.update()
        # Choosing takes time as well: with small models it decides. A round that was disturbed must not count.
        choosing_s = min(max(0.0, self._choosing_s), prices.plain_s)
        self._learn_saved(done, choosing_s)
        for candidate, ask_s in self._asked:
            candidate.learn_outcome(done.tokens)
            usual_s = min(ask_s, prices.plain_s)
            if candidate.has_model:
                usual_s = candidate.learn_step(self._n_rounds, ask_s, assumed_s=self._step_s(candidate))
            self._learn_round(candidate, done, choosing_s + usual_s)
            if candidate in self._tried:
                self._learn_trial(candidate, done, ask_s, usual_s, choosing_s, decided)
            candidate.draft = EMPTY
        if self._used is not None:
            self._used.n_chosen += 1
        # In the next round there may be no room for a draft: nothing of this one may be learned again.
        self._asked, self._used, self._tried, self._read = [], None, {}, {}

    def _learn_saved(self, done: Round, choosing_s: float) -> None:
        """Learn what asking has saved in a round. What models are tried for says nothing of that."""
        if any(candidate.has_model for candidate in self._tried):
            return
        plain_s, n_tokens = self.prices.plain_s, len(done.tokens)
        saved_s = -sum(min(ask_s, plain_s) for _, ask_s in self._asked)
        if self._used is not None:
            saved_s += n_tokens * plain_s - self.prices.usual_s(done.n_rows, n_tokens) - choosing_s
        self._saved_s += _FOLLOW * (saved_s - self._saved_s)

    def _learn_round(self, candidate: Candidate, done: Round, drafting_s: float) -> None:
        """Learn what a round with a candidate's draft wrote, and what it took."""
        if candidate is self._used:
            n_tokens, seconds = len(done.tokens), done.verify_s + done.sample_s
        elif candidate.has_model:
            # A table's draft was better: the round that there would have been without that.
            n_tokens = 1 + len(candidate.verified.descend(done.tokens))
            n_rows = done.n_rows - sum(done.drafted) + len(candidate.verified)
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
        candidate, n_verified, is_trial, (costs, round_s, token_s, rate) = self._decided
        return Decision(
            drafter=candidate.name,
            chances=tuple(candidate.chances[: self.most]),
            n_verified=n_verified,
            is_trial=is_trial,
            decodes_s=tuple(costs),
            round_s=round_s,
            token_s=token_s,
            drafting_s=self._drafting_s,
            step_s=self._step_s(candidate) if candidate.has_model else None,
            rate=rate,
        )

    @property
    def has_learned(self) -> bool:
        """Whether this run has learned enough to be worth keeping."""
        self._count_passed()
        return self._n_rounds >= _ENOUGH_TO_KEEP

    def as_json(self) -> dict[str, Any]:
        """Return what it has learned of this device and of its drafters, as ``recall`` takes it, and the speed-up."""
        prices = self.prices
        self._count_passed()
        prices.update()
        speed_up = prices.tokens / prices.seconds * prices.plain_s if prices.seconds > 0 else 1.0
        known = min(self._known_rounds, _AS_MANY_ROUNDS)
        n_rounds = known + self._n_rounds
        if known:
            speed_up = (known * self._known_speed_up + self._n_rounds * speed_up) / n_rounds
        return {
            "seconds": prices.curve.as_json(),
            "own": {"round_s": prices.round_s, "token_s": prices.token_s},
            "rounds": n_rounds,
            "speed_up": speed_up,
            "drafters": {candidate.name: candidate.as_json() for candidate in self.candidates},
        }

    def recall(self, learned: Mapping[str, Any]) -> None:
        """Begin with what was learned in an earlier run; what depends on its text is left out.

        Raises:
            ValueError, TypeError, LookupError, AttributeError: it is damaged; at most a part of it counts.
        """
        n_rounds, speed_up = whole(learned["rounds"], least=1), positive(learned["speed_up"])
        own = learned["own"]
        round_s, token_s = at_least_zero(own["round_s"]), at_least_zero(own["token_s"])
        self.prices.curve.recall(learned["seconds"])
        self.prices.round_s, self.prices.token_s = round_s, token_s
        self._known_rounds, self._known_speed_up = n_rounds, speed_up
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
        for candidate in self.candidates:
            candidate.drafter.close()

    @property
    def held_bytes(self) -> int:
        return sum(candidate.drafter.held_bytes for candidate in self.candidates)
