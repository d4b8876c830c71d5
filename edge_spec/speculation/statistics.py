"""What speculation did for one reply."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from edge_spec.speculation.round import Round

__all__ = ["Statistics"]


@dataclass
class Statistics:
    """Counts and times of one reply.

    Attributes:
        rounds: decodes of the target.
        drafted, accepted: drafted nodes, and how many of them became text.
        tokens: tokens written; each round writes its accepted ones and one more, the bonus token.
        lengths: histogram of tokens written per round, the bonus included.
        drafted_at, accepted_at: rounds that drafted and that accepted a token at each depth.
        drafters: rounds with drafts, by the name of the drafter.
        rows: histogram of the rows that the target computed in rounds with drafts.
        branched: rounds whose drafts were trees and not chains.
        shared: rounds in which other texts were written as well; of their times this has its part.
        prefill_s, draft_s, verify_s, sample_s, rest_s: seconds; the rest is everything between the rounds.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    drafted_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    drafters: Counter[str] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)
    branched: int = 0
    shared: int = 0
    prompt_tokens: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    sample_s: float = 0.0
    rest_s: float = 0.0

    def add(self, done: Round, drafter: str = "") -> None:
        """Count a round.

        Args:
            drafter: the name of what drafted, if anything did.
        """
        n = len(done.tokens)
        self.rounds += 1
        self.tokens += n
        self.lengths[n] += 1
        if done.drafted:
            self.drafted += sum(done.drafted)
            self.accepted += done.accepted
            self.drafted_at.update(range(len(done.drafted)))
            self.accepted_at.update(range(done.accepted))
            self.drafters[drafter] += 1
            self.rows[done.n_rows] += 1
            self.branched += max(done.drafted) > 1
        self.draft_s += done.draft_s
        self.verify_s += done.verify_s
        self.sample_s += done.sample_s

    @property
    def decode_s(self) -> float:
        """Seconds from the end of the prompt to the end of the reply."""
        return self.draft_s + self.verify_s + self.sample_s + self.rest_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens written per second after the prompt; 0 before anything was measured."""
        return self.tokens / self.decode_s if self.decode_s else 0.0

    @property
    def mean_length(self) -> float:
        """Mean accepted length: tokens written per round, the bonus included."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Of the rounds that drafted so deep, the share whose text went so deep along the draft."""
        return [self.accepted_at[depth] / self.drafted_at[depth] for depth in sorted(self.drafted_at)]

    def to_json(self) -> dict[str, Any]:
        """Return tokens, what was drafted and accepted, and times, as plain values."""
        counts = {"prompt_tokens": self.prompt_tokens, "tokens": self.tokens}
        return {**counts, **self.speculation(), "timings": self.timings()}

    def timings(self) -> dict[str, float]:
        """Return seconds by phase and tokens per second, for ``--json``."""
        prefill_rate = self.prompt_tokens / self.prefill_s if self.prefill_s else 0.0
        return {
            "prefill_s": self.prefill_s,
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
            "sample_s": self.sample_s,
            "rest_s": self.rest_s,
            "prompt_tokens_per_s": prefill_rate,
            "tokens_per_s": self.tokens_per_s,
        }

    def speculation(self) -> dict[str, Any]:
        """Return what was drafted and accepted, for ``--json``."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "mean_accepted_length": self.mean_length,
            "accepted_lengths": {str(n): self.lengths[n] for n in sorted(self.lengths)},
            "acceptance_by_position": self.acceptance_by_position,
        }
