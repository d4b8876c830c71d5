"""What is known of one drafter: how far its drafts reach and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_spec.speculation.adaptive.calibration import Calibration
from edge_spec.speculation.adaptive.records import chance, positive
from edge_spec.speculation.tree import Tree

__all__ = ["Offer"]

_FIRST_REACH = 0.65
_FOLLOW = 0.04
_HOPE = 0.002
"""How fast depths that are not drafted come to count like the deepest one that is; measuring them takes it back."""

_FADE = 0.97
_PASSED_OVER = 0.985


class Offer:
    """One drafter, as the policy sees it.

    Attributes:
        name: of the drafter, for people.
        reach: by depth, the chance that the next token of a draft's path is accepted if all before it were.
        step_s: seconds of drafting one level; None before it was measured.
        read_s: seconds of reading one token of the text, where many are read; None before it was measured.

    Args:
        by_depth: whether claims at different depths are worth different things, as those of tables are.
    """

    def __init__(self, name: str, *, depth: int, by_depth: bool) -> None:
        self.name = name
        self._ranks = by_depth
        # Sampled and greedy: where noise decides, deep tokens are accepted less often.
        self._reaches = ([_FIRST_REACH] * depth, [_FIRST_REACH] * depth)
        self.reach = self._reaches[0]
        self.step_s: float | None = None
        self.read_s: float | None = None
        # What tables claim was counted, at whatever temperature; what models claim are margins under noise.
        self._calibrations = (Calibration(greedy=False), Calibration(greedy=not by_depth))
        self.calibration = self._calibrations[0]
        # Of the last rounds with its drafts, older ones fading: how many, tokens written, seconds.
        self._rounds = self._tokens = self._seconds = 0.0

    def begin(self, *, greedy: bool) -> None:
        """A reply begins; its temperature decides what claims are worth."""
        self.calibration, self.reach = self._calibrations[greedy], self._reaches[greedy]

    def values(self, draft: Tree, known: Sequence[float] = ()) -> list[float]:
        """Return the chance that each node of a draft is accepted: calibrated, or measured if the draft claims none.

        Args:
            known: those of its first nodes. A draft that grows is asked about after every level.
        """
        values = list(known)
        parents, claims = draft.parents, draft.values
        for node in range(len(values), len(parents)):
            parent = parents[node]
            above = values[parent] if parent >= 0 else 1.0
            if claims:
                chance = self.calibration(_claim(claims, node, parent), self._rank(draft, node))
            else:
                chance = self.reach[min(draft.depths[node], len(self.reach) - 1)]
            values.append(above * chance)
        return values

    def learn_outcome(self, draft: Tree, tokens: Sequence[int]) -> None:
        """Learn from how the text has continued: it decides the drafted nodes on its path, and their siblings."""
        self._hope_beyond(max(draft.depths) + 1)
        parent = -1
        for depth, token in enumerate(tokens):
            siblings = draft.children(parent)
            if not siblings:
                break
            if draft.values:
                for node in siblings:
                    right = draft.tokens[node] == token
                    self.calibration.learn(_claim(draft.values, node, parent), right, self._rank(draft, node))
            child = draft.child(parent, token)
            if depth < len(self.reach):
                self.reach[depth] += _FOLLOW * ((child is not None) - self.reach[depth])
            if child is None:
                break
            parent = child

    def _hope_beyond(self, n_levels: int) -> None:
        """Depths that one bad stretch, or an earlier run, has made look hopeless are drafted again some time."""
        reach = self.reach
        for depth in range(n_levels, len(reach)):
            if reach[depth] < reach[depth - 1]:
                reach[depth] += _HOPE * (reach[depth - 1] - reach[depth])

    def learn_step(self, step_s: float, *, after_pause: bool, assumed_s: float) -> None:
        """Learn from the seconds that drafting one level has taken.

        After a pause a drafter first reads what it missed, and a model's very first decodes take many times as long as
        later ones: that can only show that a step takes less than was thought.

        Args:
            assumed_s: what was thought before anything was measured.
        """
        now = self.step_s
        if now is None:
            self.step_s = min(step_s, assumed_s) if after_pause else step_s
        elif step_s < now or not after_pause:
            self.step_s = now + (0.5 if step_s < now else 0.1) * (min(step_s, 3 * now) - now)

    def learn_reading(self, n_tokens: int, seconds: float) -> None:
        """Learn from the seconds that reading some tokens has taken."""
        if n_tokens > 0:
            now = seconds / n_tokens
            self.read_s = now if self.read_s is None else self.read_s + 0.5 * (min(now, 3 * self.read_s) - self.read_s)

    def learn_round(self, *, n_tokens: int, seconds: float) -> None:
        """Learn from a round that verified its draft."""
        self._rounds = self._rounds * _FADE + 1
        self._tokens = self._tokens * _FADE + n_tokens
        self._seconds = self._seconds * _FADE + seconds

    def passed_over(self) -> None:
        """Let what is known of it fade a little: the round uses another drafter."""
        self._rounds *= _PASSED_OVER
        self._tokens *= _PASSED_OVER
        self._seconds *= _PASSED_OVER

    def seen_gain(self, rate: float) -> tuple[float, float]:
        """Tokens of its rounds beyond what their time would have brought at ``rate``, and how many rounds those are."""
        if not self._rounds:
            return 0.0, 0.0
        return (self._tokens - rate * self._seconds) / self._rounds, self._rounds

    @property
    def usual_round(self) -> tuple[float, float] | None:
        """Seconds and tokens of its last rounds; None before it was tried."""
        return (self._seconds / self._rounds, self._tokens / self._rounds) if self._rounds else None

    def as_json(self) -> dict[str, Any]:
        """Return what was learned, as ``recall`` takes it."""
        sampled, greedy = self._calibrations
        return {
            "step_s": self.step_s,
            "read_s": self.read_s,
            "reach": self._reaches[0],
            "greedy_reach": self._reaches[1],
            "sampled": sampled.as_json(),
            "greedy": greedy.as_json(),
        }

    def recall(self, learned: Mapping[str, Any]) -> None:
        """Begin with what was learned in an earlier run.

        Raises:
            ValueError, TypeError, KeyError: it is damaged; at most a part of it counts.
        """
        # Records of earlier versions have one list for all temperatures.
        found = (learned["reach"], learned.get("greedy_reach", learned["reach"]))
        reaches = [[chance(each) for each in reach][: len(self.reach)] for reach in found]
        step_s = positive(learned["step_s"]) if learned["step_s"] is not None else None
        read_s = positive(learned["read_s"]) if learned.get("read_s") is not None else None
        for calibration, kept in zip(self._calibrations, ("sampled", "greedy"), strict=True):
            calibration.recall(learned[kept])
        for known, reach in zip(self._reaches, reaches, strict=True):
            known[: len(reach)] = reach
        self.step_s, self.read_s = step_s, read_s

    def _rank(self, draft: Tree, node: int) -> int:
        return draft.depths[node] if self._ranks else draft.parents[:node].count(draft.parents[node])


def _claim(claims: Sequence[float], node: int, parent: int) -> float:
    """Return what is claimed for a node, given the one above it."""
    if parent < 0:
        return claims[node]
    above = claims[parent]
    return claims[node] / above if above > 0 else 0.0
