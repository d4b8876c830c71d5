"""What rounds cost, and what their time is worth in tokens."""

from __future__ import annotations

from collections.abc import Iterable

from edge_spec.speculation.chooser.curve import CostCurve
from edge_spec.speculation.round import Round

__all__ = ["Prices", "follow"]

_FADE = 0.99
_FOLLOW = 0.05
_PLAIN_ROUNDS = 10
"""Rounds of plain decoding with which the rate begins, and that it never quite forgets."""


class Prices:
    """Seconds of rounds by the nodes that they verify, and the tokens that would be written in that time.

    What is measured is learned at once; what follows from it is worked out by ``update``, when somebody wants to know.

    Args:
        curve: seconds of the target's decodes.
        most: nodes of the largest draft.
        n_texts: texts that share a decode. Each has a row, and writes a token, without any draft.

    Attributes:
        tokens, seconds: of the last rounds, older ones fading.
        round_s: seconds of sampling and bookkeeping of a round that drafts nothing.
        token_s: the same of each further token.
        costs: seconds of decodes without a draft, and with one of 1, 2, 3 and more nodes.
        plain_s: seconds of a plain round.
        rate: tokens per second that are written now; never less than plain decoding's.
        share: what is left of a token for the draft that brings it: it has to be written as well.
        plain_gain: what a plain round gains.
        least_chance: no draft pays whose likeliest token is accepted with less.
    """

    def __init__(self, curve: CostCurve, most: int, n_texts: int = 1) -> None:
        self.curve = curve
        self.most = most
        self.n_texts = n_texts
        self.tokens = self.seconds = 0.0
        self.round_s = self.token_s = 0.0
        self._is_worked_out = False
        self.update()

    def begin_with(self, round_s: float, token_s: float = 0.0) -> None:
        """Begin with what rounds and tokens took elsewhere."""
        self.round_s, self.token_s, self._is_worked_out = round_s, token_s, False

    def learn(self, done: Round) -> None:
        """Learn from what a round took."""
        self._is_worked_out = False
        n_tokens, sample_s = len(done.tokens), done.sample_s
        self.curve.learn(done.n_rows, done.verify_s)
        n_more = n_tokens - self.n_texts
        if not n_more:
            self.round_s = follow(self.round_s, sample_s)
        elif self.round_s:
            further_s = min(max(0.0, sample_s - self.round_s) / n_more, self.round_s)
            self.token_s = follow(self.token_s, further_s)
        self.tokens = self.tokens * _FADE + n_tokens
        self.seconds = self.seconds * _FADE + done.draft_s + done.verify_s + sample_s

    def pass_over(self, n_rounds: int) -> None:
        """Count so many plain rounds that nobody looked at."""
        self._is_worked_out = False
        kept = _FADE**n_rounds
        n_counted = (1 - kept) / (1 - _FADE)
        self.tokens = self.tokens * kept + n_counted * self.n_texts
        self.seconds = self.seconds * kept + n_counted * self.plain_s

    def update(self) -> None:
        """Work out what the next round costs, from what is known now."""
        if self._is_worked_out:
            return
        self._is_worked_out = True
        n_texts = self.n_texts
        self.costs = costs = self.curve.first(self.most + n_texts)[n_texts - 1 :]
        # A plain decode takes no longer than one of more rows: what says so is noise.
        costs[0] = min(costs)
        self.plain_s = plain_s = costs[0] + self.round_s
        self.rate = rate = (
            max(n_texts / plain_s, (self.tokens + _PLAIN_ROUNDS * n_texts) / (self.seconds + _PLAIN_ROUNDS * plain_s))
            if plain_s > 0
            else 0.0
        )
        own_s = self.round_s - n_texts * self.token_s
        self._by_nodes = [rate * (seconds + own_s) for seconds in costs]
        self.share = 1 - rate * self.token_s
        self.plain_gain = n_texts - rate * plain_s
        plain = self._by_nodes[0]
        cheapest = min((each - plain) / n for n, each in enumerate(self._by_nodes[1:], 1))
        self.least_chance = cheapest / self.share if self.share > 0 else 0.0

    def gain(self, n_nodes: int, n_tokens: float) -> float:
        """Return what a round gains that verifies so many nodes and is expected to write so many tokens."""
        return n_tokens * self.share - self._by_nodes[n_nodes]

    def further(self, n_nodes: int, n_more: int) -> float:
        """Return the tokens that ``n_more`` nodes have to bring if ``n_nodes`` are verified without them."""
        return self._by_nodes[n_nodes + n_more] - self._by_nodes[n_nodes]

    def usual_s(self, n_rows: int, n_tokens: int) -> float:
        """Return what a round of so many rows and tokens usually takes beside drafting."""
        n_nodes = n_rows - self.n_texts
        decode_s = self.costs[n_nodes] if n_nodes < len(self.costs) else self.curve(n_rows)
        return decode_s + self.round_s + (n_tokens - self.n_texts) * self.token_s

    def best_size(self, values: Iterable[float]) -> tuple[int, float]:
        """Return how many nodes of a draft to verify, and what that gains; 0 if plain decoding gains more.

        Args:
            values: the chances that its nodes are accepted. The best of them always form a tree.
        """
        best, best_gain, tokens = 0, self.plain_gain, float(self.n_texts)
        for n, value in enumerate(sorted(values, reverse=True)[: self.most], 1):
            tokens += value
            gain = self.gain(n, tokens)
            if gain > best_gain:
                best, best_gain = n, gain
        return best, best_gain


def follow(now: float, seconds: float) -> float:
    """Return a running mean in which one hiccup does not count like many rounds."""
    return now + _FOLLOW * (min(seconds, 3 * now) - now) if now else seconds
