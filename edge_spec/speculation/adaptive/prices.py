"""What decodes, drafts and whole rounds are worth, in tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edge_spec.speculation.adaptive.costs import CostCurve
from edge_spec.speculation.adaptive.offer import Offer
from edge_spec.speculation.adaptive.own_time import OwnTime
from edge_spec.speculation.adaptive.pace import Pace
from edge_spec.speculation.adaptive.rest import Rest

__all__ = ["PIECE", "Prices"]

PIECE = 128
"""Tokens of a text that a model reads between two rounds, so that the stream does not stall."""

_MARGIN = 0.02
"""A draft must gain this share more than its rows cost: claims are not exact enough to decide closer cases."""

_LOOK_AHEAD = 9
_ENOUGH_ROUNDS = 8
_UNKNOWN_STEP = 0.15
"""Drafting one level takes this share of a plain round, until it is measured."""

_UNKNOWN_READING = 0.25
"""Reading a token takes this share of drafting one, until it is measured: many are read at once."""

_CATCH_UP = 16
"""Tokens that cost nothing to read: the next decode can take them in."""

_TRIAL_SHARE = 0.02
"""Share of the rest of a reply that may be spent on reading for a trial."""


class Prices:
    """Weighs tokens against the time that they take.

    With R the tokens per second that the best known choice reaches, a draft is worth its rows while the tokens that it
    is expected to bring, less R times the seconds that drafting, verifying and bookkeeping take, grow: maximizing
    tokens over time is maximizing tokens minus R times time (the marginal rule of fractional programming). All lengths
    are looked at, since costs have kinks. Plain decoding is a choice like any other.

    Args:
        most: nodes of the largest draft.
        seconds: first estimates of seconds per decode, by number of rows.
        only_shape: whether these are another model's, see ``CostCurve``.

    Attributes:
        curve: seconds of the target's decodes.
        rest: how much the reply may still grow by.
    """

    def __init__(self, *, most: int = 9, seconds: Mapping[int, float] | None = None, only_shape: bool = False) -> None:
        self.most = most
        self.curve = CostCurve(seconds, only_shape=only_shape)
        self.rest = Rest()
        self._pace = Pace()
        self._own = OwnTime()
        # Asked for many times between two rounds.
        self._known_rate: float | None = None
        self._known_costs: list[float] = []

    def changed(self) -> None:
        """Forget what was computed from the curve, own times and pace: one of them has changed."""
        self._known_rate = None
        self._known_costs = []

    @property
    def plain_s(self) -> float:
        """Seconds of a round without a draft."""
        return self.curve(1) + self._own(1)

    @property
    def rate(self) -> float:
        """Tokens per second of the best known choice; at least those of plain decoding."""
        if self._known_rate is None:
            self._known_rate = self._pace.rate(self.plain_s)
        return self._known_rate

    @property
    def plain_gain(self) -> float:
        """What a round without a draft gains."""
        return 1 - self.rate * self.plain_s

    def best_size(self, values: Iterable[float]) -> tuple[int, float]:
        """Return how many nodes of a draft to verify, and what that gains; 0 if plain decoding gains more.

        Args:
            values: the chances that its nodes are accepted. The best of them always form a tree.
        """
        costs, share = self._costs, self._share
        best, gain, tokens = 0, self.plain_gain, 1.0
        margin = _MARGIN * costs[0]
        for n, value in enumerate(sorted(values, reverse=True)[: self.most], 1):
            tokens += value
            gained = tokens * share - (1 + _MARGIN) * costs[n] + margin
            if gained > gain:
                best, gain = n, gained
        return best, gain

    def is_worth_more(self, offer: Offer, value: float, n: int, depth: int) -> bool:
        """Return whether drafting another level pays, or several.

        Args:
            value: the chance that the node which would be continued is accepted.
            n: nodes of the draft that are worth as much.
            depth: levels that it has.
        """
        costs, share, step, reach = self._costs, self._share, self._step_cost(offer), offer.reach
        gained = 0.0
        for more in range(1, min(_LOOK_AHEAD, min(len(reach), self.most) - max(n, depth)) + 1):
            value *= reach[depth + more - 1]
            gained += value * share
            if gained > more * step + costs[n + more] - costs[n]:
                return True
        return False

    def expected_gain(self, offer: Offer) -> float:
        """Return what a round with a draft of this drafter gains: as its last rounds did, before them by its reach."""
        seen, n_rounds = offer.seen_gain(self.rate)
        trust = min(1.0, n_rounds / _ENOUGH_ROUNDS)
        return trust * seen + (1 - trust) * self._gain_by_reach(offer) if trust < 1 else seen

    def pays_to_read(self, offer: Offer, n_unread: int, *, gained: float) -> bool:
        """Return whether a drafter that gains so many tokens a round pays, if it has to read others first."""
        _, n_tokens = offer.usual_round or (0.0, 0.0)
        # While it reads, a piece between two rounds, the reply goes on. A round takes as long as a plain one at least.
        drafted = self.rest.tokens - n_unread / PIECE
        return self._reading_cost(offer, n_unread) <= drafted * gained / max(n_tokens, 1 + gained)

    def may_read_for_a_trial(self, offer: Offer, n_unread: int) -> bool:
        """Return whether reading so many tokens takes little of the rest of the reply."""
        return self._reading_cost(offer, n_unread) <= _TRIAL_SHARE * self.rest.tokens

    def _reading_cost(self, offer: Offer, n_unread: int) -> float:
        """Return tokens that the time of reading would have brought."""
        if n_unread < _CATCH_UP:
            return 0.0
        token_s = offer.read_s if offer.read_s is not None else _UNKNOWN_READING * self._step_s(offer)
        return self.rate * token_s * n_unread

    def _gain_by_reach(self, offer: Offer) -> float:
        costs, share, step = self._costs, self._share, self._step_cost(offer)
        tokens = reached = 1.0
        gain = float("-inf")
        for n, chance in enumerate(offer.reach[: self.most], 1):
            reached *= chance
            tokens += reached
            gained = tokens * share - costs[n] - n * step
            if gained > gain:
                gain = gained
        return gain

    @property
    def _share(self) -> float:
        """What is left of a token for the draft that brings it: it has to be sampled and written as well."""
        return 1 - self.rate * self._own.token_s

    @property
    def _costs(self) -> list[float]:
        """Tokens that the time of a round with so many drafted nodes would have brought, beside that of its tokens."""
        if not self._known_costs:
            rate, own_s = self.rate, self._own(0)
            self._known_costs = [rate * (seconds + own_s) for seconds in self.curve.first(self.most + 1)]
        return self._known_costs

    def _step_cost(self, offer: Offer) -> float:
        return self.rate * self._step_s(offer)

    def _step_s(self, offer: Offer) -> float:
        return offer.step_s if offer.step_s is not None else _UNKNOWN_STEP * self.plain_s
