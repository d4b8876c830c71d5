"""What is known of one drafter: what its drafts have brought, what they claim, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_spec.speculation.chooser.claims import Calibration
from edge_spec.speculation.chooser.records import chance, positive
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["Candidate"]

_FIRST_CHANCE = 0.65
_FOLLOW = 0.04
_FADE, _PASSED_OVER = 0.97, 0.985
"""How much what is known of its rounds counts after one more, and after one that used another drafter."""
_SLOWER, _FASTER = 0.1, 0.5
"""How fast the time of a step is believed."""

_SHARE = 0.005
"""Share of the time that trials of one drafter may cost."""

_MOST_FAILED = 4


class Candidate:
    """One drafter, as the chooser sees it; where several texts share a decode, one for each of them.

    Args:
        like: the same drafter for another number of texts. What is known of drafts is shared with it, and what is known
            of times is taken over.

    Attributes:
        name: of the drafter.
        drafters: it, for each text.
        has_model: whether it computes; else it is a table, whose drafts cost next to nothing.
        drafts: what it drafted last for each text; all of it, whether it was verified or not.
        reach: by depth, the chance that the next token of a path is accepted if all before it were.
        chances: of its nodes that they are accepted, the largest first.
        verified: the parts of them that are worth verifying.
        expected: tokens that a round with that part is expected to write.
        step_s: seconds of drafting one level; None before it was measured.
        read_s: seconds of reading one token of the text; None before it was measured.
    """

    def __init__(self, drafter: Drafter, *, depth: int = 9, like: Candidate | None = None) -> None:
        self.name = drafter.name
        self.drafters: Sequence[Drafter] = (drafter,)
        self.has_model = bool(drafter.followed)
        self.drafts: Sequence[Tree] = (EMPTY,)
        self.verified: Sequence[Tree] = (EMPTY,)
        self.chances: list[float] = []
        self.expected = 1.0
        self.step_s: float | None = None
        self.read_s: float | None = None
        # Sampled and greedy: where noise decides, drafts are accepted less often. What tables claim was counted, at
        # whatever temperature; what models claim are margins under noise.
        self._reaches = ([_FIRST_CHANCE] * depth, [_FIRST_CHANCE] * depth)
        self._calibrations = (Calibration(greedy=False), Calibration(greedy=self.has_model))
        if like is not None:
            self._reaches, self._calibrations = like._reaches, like._calibrations
            self.step_s, self.read_s = like.step_s, like.read_s
        self._greedy: Sequence[bool] = (False,)
        self._past = (_Past(), _Past())
        self._last_round = 0
        # When the next trial is due; how many failed.
        self._due_s = 0.0
        self._n_failed = 0

    @property
    def drafter(self) -> Drafter:
        """It, for the first text."""
        return self.drafters[0]

    @property
    def reach(self) -> list[float]:
        return self._reaches[self._greedy[0]]

    @property
    def n_unread(self) -> int:
        """Tokens of the texts that its models have not read."""
        return sum(drafter.n_unread() for drafter in self.drafters)

    def draft_for(self, drafters: Sequence[Drafter], greedy: Sequence[bool]) -> None:
        """Draft with these in the next round, each for a text, whose temperature decides what claims are worth."""
        self.drafters, self._greedy, self.drafts = drafters, greedy, (EMPTY,) * len(drafters)

    @property
    def n_levels(self) -> int:
        """How deep its drafts are."""
        return max(max(draft.depths, default=-1) for draft in self.drafts) + 1

    def values(self, draft: Tree, known: Sequence[float] = (), text: int = 0) -> list[float]:
        """Return the chance that each node of a draft is accepted: calibrated, or measured if the draft claims none.

        Args:
            known: those of its first nodes. A draft that grows is asked about after every level.
            text: which one it is for.
        """
        values, greedy = list(known), self._greedy[text]
        parents, claims, depths = draft.parents, draft.values, draft.depths
        calibration, reach = self._calibrations[greedy], self._reaches[greedy]
        for node in range(len(values), len(parents)):
            parent = parents[node]
            above = values[parent] if parent >= 0 else 1.0
            if claims:
                values.append(above * calibration(_claim(claims, node, parent), self._rank(draft, node)))
            else:
                values.append(above * reach[min(depths[node], len(reach) - 1)])
        return values

    def best_chance(self) -> float:
        """Return the largest of ``values`` of what it drafted last; 0 if that is nothing."""
        best = 0.0
        for text, draft in enumerate(self.drafts):
            claims, greedy = draft.values, self._greedy[text]
            for node in draft.children(-1):
                if claims:
                    best = max(best, self._calibrations[greedy](claims[node], self._rank(draft, node)))
                else:
                    best = max(best, self._reaches[greedy][0])
        return best

    def learn_outcome(self, tokens: Sequence[int], text: int = 0) -> None:
        """Learn from how a text has continued: it decides the drafted nodes on its path, and their siblings."""
        draft, greedy, parent = self.drafts[text], self._greedy[text], -1
        calibration, reach = self._calibrations[greedy], self._reaches[greedy]
        n_levels = len(draft.counts_by_depth()) if draft else 0
        for depth, token in enumerate(tokens):
            siblings = draft.children(parent)
            if not siblings:
                break
            if draft.values:
                for node in siblings:
                    right = draft.tokens[node] == token
                    calibration.learn(_claim(draft.values, node, parent), right, self._rank(draft, node))
            child = draft.child(parent, token)
            # Deeper ones are assumed to be accepted as often, until they are drafted themselves.
            right = child is not None
            if depth < len(reach):
                for deeper in (depth, *range(max(depth + 1, n_levels), len(reach))):
                    reach[deeper] += _FOLLOW * (right - reach[deeper])
            if child is None:
                break
            parent = child

    def learn_step(self, number: int, seconds: float, *, assumed_s: float) -> float:
        """Learn from the seconds that drafting has taken in a round, and return what it usually takes at most.

        Args:
            number: of the round.
            assumed_s: of a level, before anything was measured.
        """
        n_levels = self.n_levels
        if not n_levels:
            return seconds
        step_s, known = seconds / n_levels, self.step_s
        if known is None:
            self.step_s = step_s
            return min(seconds, 3 * assumed_s * n_levels)
        if step_s < known:
            self.step_s = known + _FASTER * (step_s - known)
        elif number == self._last_round + 1:
            # A drafter that was not asked before reads what it has missed: that says nothing of its speed.
            self.step_s = known + _SLOWER * (min(step_s, 3 * known) - known)
        return min(seconds, 3 * known * n_levels)

    def learn_reading(self, n_tokens: int, seconds: float) -> None:
        """Learn from the seconds that reading some tokens has taken."""
        if n_tokens > 0:
            now = seconds / n_tokens
            self.read_s = now if self.read_s is None else self.read_s + 0.5 * (min(now, 3 * self.read_s) - self.read_s)

    def learn_round(self, number: int, *, n_tokens: int, seconds: float) -> None:
        """Learn from a round, by its number, in which it drafted. What is older counts less, asked or not."""
        self._past[self._greedy[0]].add(number, n_tokens, self.expected, seconds)
        self._last_round = number

    def seen_gain(self, number: int, rate: float) -> tuple[float, float]:
        """Tokens of its rounds beyond what their time would have brought at ``rate``, and how many rounds those are.

        Tokens count half as they came and half as they were expected, which varies less.

        Args:
            number: of the last round.
        """
        past = self._past[self._greedy[0]]
        if not past.rounds:
            return 0.0, 0.0
        n_rounds = past.rounds * _PASSED_OVER ** (number - past.last)
        return ((past.tokens + past.expected) / 2 - rate * past.seconds) / past.rounds, n_rounds

    def usual_round(self, *, greedy: bool) -> tuple[float, float] | None:
        """Return seconds and tokens of its last rounds; None before it was tried."""
        past = self._past[greedy]
        return (past.seconds / past.rounds, past.tokens / past.rounds) if past.rounds else None

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time to try it, though it is not expected to pay.

        Args:
            now_s: seconds of all rounds so far.
        """
        return now_s >= self._due_s

    def tried(self, now_s: float, *, lost_s: float, caught_up_s: float, round_s: float) -> None:
        """Note what a trial has lost against the best choice: the next one waits until that is little.

        After trials in a row that failed, the next one waits longer.

        Args:
            caught_up_s: seconds besides, in which it took in what it had missed of the text.
            round_s: seconds of a plain round.
        """
        # A model that lost less than a plain round may have had bad luck; a table that lost anything found nothing.
        failed = lost_s > (round_s if self.has_model else 0)
        self._n_failed = min(self._n_failed + failed, _MOST_FAILED) if lost_s > 0 else 0
        self._due_s = now_s + max(1, self._n_failed) * max(0.0, lost_s + caught_up_s) / _SHARE

    def as_json(self) -> dict[str, Any]:
        """Return what was learned, as ``recall`` takes it."""
        sampled, greedy = self._calibrations
        return {
            "step_s": self.step_s,
            "read_s": self.read_s,
            "reach": self._reaches,
            "sampled": sampled.as_json(),
            "greedy": greedy.as_json(),
        }

    def recall(self, learned: Mapping[str, Any]) -> None:
        """Begin with what was learned in an earlier run.

        Raises:
            ValueError, TypeError, KeyError: it is damaged; at most a part of it counts.
        """
        reaches = [[chance(each) for each in reach][: len(self._reaches[0])] for reach in learned["reach"]]
        step_s = positive(learned["step_s"]) if learned["step_s"] is not None else None
        read_s = positive(learned["read_s"]) if learned["read_s"] is not None else None
        for calibration, kept in zip(self._calibrations, ("sampled", "greedy"), strict=True):
            calibration.recall(learned[kept])
        for known, reach in zip(self._reaches, reaches, strict=True):
            known[: len(reach)] = reach
        self.step_s, self.read_s = step_s, read_s

    def _rank(self, draft: Tree, node: int) -> int:
        """Return what claims are counted by: the place among siblings, of tables the depth."""
        if draft.is_sequence:
            return 0 if self.has_model else node
        return draft.parents[:node].count(draft.parents[node]) if self.has_model else draft.depths[node]


class _Past:
    """The rounds in which a drafter drafted, older ones fading.

    Attributes:
        rounds, tokens, expected, seconds: how many they are, what they wrote and were expected to, and what they took.
        last: the number of the last one.
    """

    __slots__ = ("expected", "last", "rounds", "seconds", "tokens")

    def __init__(self) -> None:
        self.rounds = self.tokens = self.expected = self.seconds = 0.0
        self.last = 0

    def add(self, number: int, n_tokens: int, expected: float, seconds: float) -> None:
        fade = _FADE * _PASSED_OVER ** max(0, number - self.last - 1)
        self.last = number
        self.rounds = self.rounds * fade + 1
        self.tokens = self.tokens * fade + n_tokens
        self.expected = self.expected * fade + expected
        self.seconds = self.seconds * fade + seconds


def _claim(claims: Sequence[float], node: int, parent: int) -> float:
    """Return what is claimed for a node, given the one above it."""
    if parent < 0:
        return claims[node]
    above = claims[parent]
    return claims[node] / above if above > 0 else 0.0
