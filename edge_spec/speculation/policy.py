"""Whether and how far to draft, asked before every round.

Whatever a policy answers changes when tokens arrive and never which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from edge_spec.speculation.round import Round

__all__ = ["AdaptivePolicy", "FixedPolicy", "Policy"]


class Policy(Protocol):
    """Chooses the draft limit of each round and learns from what came of it."""

    def limit(self) -> int:
        """The most tokens to draft now; 0 for plain decoding."""

    def learn(self, done: Round) -> None:
        """A round is over."""


class FixedPolicy:
    """Always drafts up to the same limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def limit(self) -> int:
        return self._limit

    def learn(self, done: Round) -> None:
        """A fixed policy learns nothing."""


class AdaptivePolicy:
    """Drafts as far as that pays on this device, now; not at all where nothing pays.

    Tokens per second after drafting k tokens are ``E(k) / (k * draft + v(k + 1))``: E from running estimates of
    the chance that a draft is accepted given that the ones before it were, v from measured times of the model's
    decodes. The curve v is scanned rather than modelled, since kernels take rows in groups and it has kinks.
    Plain decoding keeps the upper hand until drafting promises ``margin`` more.

    What is not done is tried now and then, to notice when the text or the device changes. While it decodes plainly,
    two rounds in a row draft anyway: in the first a drafter reads what it missed, the second shows its speed. The
    wait until the next trial doubles, and is long enough that what the trial cost stays below ``trial_share`` of the
    time. While it drafts, one round in ``recheck_every`` is plain.

    Args:
        most: the most tokens ever drafted in a round.
        seconds: first estimates of seconds per decode, by number of rows.
    """

    def __init__(
        self,
        *,
        most: int = 7,
        seconds: Mapping[int, float] | None = None,
        margin: float = 0.03,
        first_wait: int = 8,
        longest_wait: int = 128,
        trial_share: float = 0.02,
        recheck_every: int = 64,
    ) -> None:
        self._most = most
        self._seconds = dict(seconds or {})
        # The measured width that speaks for another; asked for many times between two measurements.
        self._stand_in: dict[int, int] = {}
        self._margin = margin
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._trial_share = trial_share
        self._recheck_every = recheck_every
        self._accepts = [0.7] * most
        self._draft_s: float | None = None
        self._wait = first_wait
        self._plain_rounds = 0
        self._drafting_rounds = 0
        self._trial_left = 0
        self._trial_s = 0.0
        self._rested = False
        # How far drafting is best, and tokens per second then; asked far more often than it changes.
        self._drafting: tuple[int, float] | None = None

    def limit(self) -> int:
        if 1 not in self._seconds:
            return 0
        if self._trial_left:
            return min(2, self._most)
        best = self._best()
        if best:
            self._wait, self._plain_rounds = self._first_wait, 0
            self._drafting_rounds += 1
            return best if self._drafting_rounds % self._recheck_every else 0
        self._drafting_rounds = 0
        self._plain_rounds += 1
        if self._plain_rounds < self._wait:
            return 0
        self._plain_rounds = 0
        self._wait = min(2 * self._wait, self._longest_wait)
        self._trial_left, self._trial_s = 2, 0.0
        return min(2, self._most)

    def _best(self) -> int:
        if self._draft_s is None:
            return min(2, self._most)
        if self._drafting is None:
            self._drafting = self._best_drafting(self._draft_s)
        limit, rate = self._drafting
        return limit if rate * self._seconds[1] > 1 + self._margin else 0

    def _best_drafting(self, draft_s: float) -> tuple[int, float]:
        best, best_rate = 0, 0.0
        expected, reach = 1.0, 1.0
        for k in range(1, self._most + 1):
            reach *= self._accepts[k - 1]
            expected += reach
            rate = expected / (k * draft_s + self._verify_s(k + 1))
            if rate > best_rate:
                best, best_rate = k, rate
        return best, best_rate

    def _verify_s(self, n_rows: int) -> float:
        """Seconds of a decode; between measured widths those of the next wider one, beyond them in proportion."""
        width = self._stand_in.get(n_rows)
        if width is None:
            wider = [n for n in self._seconds if n >= n_rows]
            width = self._stand_in[n_rows] = min(wider) if wider else max(self._seconds)
        return self._seconds[width] * max(1.0, n_rows / width)

    def learn(self, done: Round) -> None:
        n_drafted = len(done.drafted)
        old = self._seconds.get(done.n_rows)
        if old is None:
            self._stand_in.clear()
        # The first decodes of a width pay for page faults and warm-up: believe faster times sooner.
        weight = 0.5 if old is None or done.verify_s < old else 0.1
        self._seconds[done.n_rows] = done.verify_s if old is None else old + weight * (done.verify_s - old)
        if n_drafted or done.n_rows > 1:
            self._drafting = None
        if self._trial_left:
            self._count_trial(done)
        rested, self._rested = self._rested, not n_drafted
        if not n_drafted:
            return
        draft_s = done.draft_s / n_drafted
        old = self._draft_s
        if old is None:
            self._draft_s = draft_s
        elif not rested or draft_s < old:
            # After plain rounds a drafter has to read what it missed, which says nothing of its speed.
            self._draft_s = old + (0.5 if draft_s < old else 0.1) * (draft_s - old)
        n_accepted = done.accepted
        for place in range(min(n_accepted + 1, n_drafted, self._most)):
            self._accepts[place] += 0.05 * ((place < n_accepted) - self._accepts[place])

    def _count_trial(self, done: Round) -> None:
        """After the last round of a trial, wait until what it lost has become a small share of the time."""
        plain_s = self._verify_s(1)
        self._trial_left -= 1
        self._trial_s += done.draft_s + done.verify_s - len(done.tokens) * plain_s
        if not self._trial_left and plain_s > 0:
            self._wait = max(self._wait, int(self._trial_s / (self._trial_share * plain_s)))
