"""What to draft in the next round, and what the rounds so far have taught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from edge_spec.speculation.adaptive.offer import Offer
from edge_spec.speculation.adaptive.pauses import Pauses
from edge_spec.speculation.adaptive.prices import Prices
from edge_spec.speculation.adaptive.records import positive, whole
from edge_spec.speculation.adaptive.trials import Trials
from edge_spec.speculation.drafters.base import Choice
from edge_spec.speculation.pause import Pause
from edge_spec.speculation.round import Round

__all__ = ["AdaptivePolicy"]

_PLAIN = "off"

_RECHECK_PLAIN = 128
"""Rounds with drafts after which a plain one is measured again."""

_DOUBTFUL = 1.1
_RECHECK_DOUBTFUL = 16
"""The same where a plain decode seems so many times as dear as one of more rows: some slow moment must explain that."""

_LONGEST_FIRST_PAUSE = 16
"""Rounds that a pause may last into another reply."""

_READING_ROUNDS = 3
_ENOUGH_TO_KEEP = 32
"""A run of fewer rounds has learned nothing worth keeping."""

_AS_MANY_ROUNDS = 1024
"""Rounds that the speed-up of earlier runs counts for at most."""


class AdaptivePolicy(Prices):
    """Writes as many tokens per second as the drafters at hand allow.

    What is not chosen is tried now and then, to notice when text or device change; what that has lost against the best
    choice stays below half a percent of the time (``Trials``). Where calling the drafters costs more than it gains,
    they are paused for many rounds (``Pauses``).

    Args:
        most: nodes of the largest draft.
        seconds: first estimates of seconds per decode, by number of rows.
        only_shape: whether these are another model's, see ``CostCurve``.

    Attributes:
        pause: in which rounds no drafter is called.
    """

    def __init__(self, *, most: int = 9, seconds: Mapping[int, float] | None = None, only_shape: bool = False) -> None:
        super().__init__(most=most, seconds=seconds, only_shape=only_shape)
        self.pause = Pause()
        self._pauses = Pauses()
        self._trials = Trials()
        self._n_chosen: Counter[str] = Counter()
        self._since_plain = 0
        self._n_rows = 1
        self._was_called = False
        self._used: Offer | None = None
        self._used_before: Offer | None = None
        self._n_levels = 0
        self._tried_for: float | None = None
        self._in_vain: tuple[Offer, int] | None = None
        self._reading_s = 0.0
        self._is_guided = False
        # Of earlier runs, and of this one.
        self._known_rounds, self._known_speed_up = 0, 1.0
        self._n_rounds = 0

    def begin(self, *, is_guided: bool = False) -> None:
        """A reply begins: what is known stays, and choices are counted from here.

        Args:
            is_guided: a grammar works on its drafts, whose time then says nothing of the drafters'.
        """
        self._learn_from_pause()
        self.rest.begin()
        self._n_chosen.clear()
        # The last round may have been interrupted, and another text may be worth drafts that the last one was not.
        self._used = self._used_before = None
        self._was_called, self._tried_for, self._in_vain = False, None, None
        self._is_guided = is_guided
        self._reading_s = 0.0
        self.pause.n_left = min(self.pause.n_left, _LONGEST_FIRST_PAUSE)

    def limit(self) -> int:
        """Return the most tokens to draft now."""
        self._learn_from_pause()
        # Drafts are compared with plain decoding: it is measured first, and now and then where drafts always pay.
        is_doubtful = self.curve(1) > _DOUBTFUL * self.curve(self._n_rows)
        recheck = _RECHECK_DOUBTFUL if is_doubtful else _RECHECK_PLAIN
        return self.most if self.curve(1) > 0 and self._since_plain < recheck else 0

    def choices(self, offers: Iterable[Offer]) -> dict[str, Choice]:
        """Return what is known of plain decoding and of each drafter, and how often each was chosen in this reply."""
        paused = self.pause.n_rounds
        usual = {offer.name: offer.usual_round for offer in offers}
        if self.plain_s > 0:
            usual = {_PLAIN: (self.plain_s, 1.0), **usual}
        return {
            name: Choice(
                rounds=self._n_chosen[name] + paused * (name == _PLAIN), round_s=s and s[0], tokens_per_round=s and s[1]
            )
            for name, s in usual.items()
        }

    def may_try(self, offer: Offer, *, n_unread: int) -> bool:
        """Return whether it is time to try a drafter that is not the best choice; a trial that succeeds continues.

        Args:
            n_unread: tokens that it would have to read first.
        """
        return self._trials.may_try(offer) and self.may_read_for_a_trial(offer, n_unread)

    def chose(
        self,
        offer: Offer | None,
        *,
        n_levels: int = 0,
        tried_for: float | None = None,
        in_vain: tuple[Offer, int] | None = None,
    ) -> None:
        """Note what the next round uses.

        Args:
            offer: the drafter; None for plain decoding.
            n_levels: levels that it has drafted, whether all of them are verified or not.
            tried_for: where it is only tried, what the best choice was expected to gain.
            in_vain: a model that has drafted as well, and how many levels: the time of drafting is that model's.
        """
        self._used, self._n_levels, self._tried_for, self._was_called = offer, n_levels, tried_for, True
        self._in_vain = in_vain
        if tried_for is not None:
            self._trials.began()
        elif offer is not None:
            self._trials.chosen(offer)

    def read(self, offer: Offer, n_tokens: int, seconds: float, *, is_trial: bool) -> None:
        """Note what a drafter has read of the text, ahead of this round.

        Args:
            seconds: that it has taken.
            is_trial: whether it is only tried; the trial then continues in the next round.
        """
        offer.learn_reading(n_tokens, seconds)
        self._reading_s = seconds
        if is_trial:
            self._trials.read(offer, seconds)

    def learn(self, done: Round) -> None:
        """Learn from a round in which the drafters were called."""
        used, self._used = self._used, None
        was_called, self._was_called = self._was_called, False
        if self._reading_s:
            done, was_called = replace(done, draft_s=max(0.0, done.draft_s - self._reading_s)), False
            self._reading_s = 0.0
        self._n_chosen[used.name if used is not None else _PLAIN] += 1
        self._trials.round_over()
        self.rest.wrote(len(done.tokens))
        self._n_rows = done.n_rows
        self.curve.learn(done.n_rows, done.verify_s)
        self._own.learn(len(done.tokens), done.sample_s)
        self.changed()
        seconds = done.draft_s + done.verify_s + done.sample_s
        self._since_plain = self._since_plain + 1 if done.drafted else 0
        if used is not None:
            self._learn_of(used, self._charged_in_vain(done), seconds)
        elif was_called and done.draft_s > 0 and not self._is_guided:
            self.pause.n_left = self._pauses.after_no_draft(done.draft_s, self.plain_s)
        self._used_before = used
        self._pace.add(len(done.tokens), seconds)
        self.changed()
        self._trials.spent(seconds)
        self._n_rounds += 1

    @property
    def has_learned(self) -> bool:
        """Whether this run has learned enough to be worth keeping."""
        return self._n_rounds + self.pause.n_rounds >= _ENOUGH_TO_KEEP

    def as_json(self) -> dict[str, Any]:
        """Return what was learned, as ``recall`` takes it, and the speed-up over plain decoding."""
        self._learn_from_pause()
        speed_up = self._pace.speed_up(self.plain_s)
        known = min(self._known_rounds, _AS_MANY_ROUNDS)
        n_rounds = known + self._n_rounds
        if known:
            speed_up = (known * self._known_speed_up + self._n_rounds * speed_up) / n_rounds
        return {
            "seconds": self.curve.as_json(),
            "own": self._own.as_json(),
            "rounds": n_rounds,
            "speed_up": speed_up,
        }

    def recall(self, learned: Mapping[str, Any]) -> None:
        """Begin with what was learned in an earlier run; what depends on its text is left out.

        Raises:
            ValueError, TypeError, KeyError: it is damaged; at most a part of it counts.
        """
        n_rounds, speed_up = whole(learned["rounds"], least=1), positive(learned["speed_up"])
        self.changed()
        self._own.recall(learned["own"])
        self.curve.recall(learned["seconds"])
        self._known_rounds, self._known_speed_up = n_rounds, speed_up

    def _learn_from_pause(self) -> None:
        """Learn from the rounds during which the drafters were paused."""
        pause, n = self.pause, self.pause.n_rounds
        if not n:
            return
        self.curve.learn(1, pause.verify_s / n)
        seconds = pause.verify_s + pause.own_s
        self._pace.add_plain(n, seconds)
        self.changed()
        self._trials.paused(seconds, n_rounds=n)
        self.rest.wrote(n)
        self._n_chosen[_PLAIN] += n
        self._n_rounds += n
        self._since_plain = 0
        pause.clear()

    def _charged_in_vain(self, done: Round) -> Round:
        """Return a round without the time of a model that has drafted in vain.

        The model learns what calling it led to.
        """
        if self._in_vain is None:
            return done
        (model, n_levels), self._in_vain = self._in_vain, None
        draft_s = self._learn_step_of(model, done.draft_s, n_levels)
        model.learn_round(n_tokens=len(done.tokens), seconds=done.verify_s + done.sample_s + draft_s)
        self._n_levels = 0
        return replace(done, draft_s=0.0)

    def _learn_step_of(self, offer: Offer, draft_s: float, n_levels: int) -> float:
        """Learn what drafting so many levels has taken, and return what it usually takes at most."""
        # After a pause a drafter reads what it missed, once: that says nothing of its speed.
        usual_s = min(draft_s, 3 * self._step_s(offer) * max(n_levels, 1))
        if n_levels and not self._is_guided:
            after_pause = offer is not self._used_before
            offer.learn_step(draft_s / n_levels, after_pause=after_pause, assumed_s=self._step_s(offer))
        return usual_s

    def _learn_of(self, used: Offer, done: Round, seconds: float) -> None:
        """Learn from a round about the drafter that it used."""
        rate = self.rate
        draft_s = self._learn_step_of(used, done.draft_s, self._n_levels)
        usual_s = done.verify_s + done.sample_s + draft_s
        gain = len(done.tokens) - rate * usual_s
        used.learn_round(n_tokens=len(done.tokens), seconds=usual_s)
        if self._tried_for is None:
            expected_s = self.curve(done.n_rows) + self._own(len(done.tokens)) + draft_s
            self._pauses.drafted(len(done.tokens) * self.plain_s - expected_s)
            return
        # Reading is counted as a few rounds at most: a drafter that missed a long text would never be tried again.
        spent_s = min(seconds, usual_s + _READING_ROUNDS * self.plain_s)
        self._trials.tried(
            used,
            lost_s=spent_s - usual_s + (max(0.0, self._tried_for) - gain) / max(rate, 1e-9),
            succeeded=gain > self._tried_for,
            # More than a plain round lost against plain decoding.
            is_hopeless=spent_s > (len(done.tokens) + 1) * self.plain_s,
        )
