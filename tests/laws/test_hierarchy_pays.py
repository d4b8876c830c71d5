"""The law of a hierarchy: its leaf drafts exactly where that speeds up the intermediate model.

A leaf whose step takes r of an intermediate step, rows that cost beta more of it each, and tau(d) tokens out of a draft
of d: drafting pays if tau(d) > 1 + d (r + beta) for some d. Inside a hierarchy decides the chooser that ``auto`` uses
for targets, here over simulated drafts whose tokens are right with a fixed chance.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from replay import Replay, fixed_speed, replayed_rounds

STEP_S = 1e-3
"""Of the intermediate model."""

MOST = 9
WRONG = 1


def simulated(chance: float, *, n_replies: int = 8, n_tokens: int = 250, claims: bool) -> list[dict[str, Any]]:
    """Replies of zeros, and drafts that are right as far as a coin says."""
    coin = random.Random(7)
    replies = []
    for _ in range(n_replies):
        drafts = []
        for _ in range(n_tokens):
            right = next((n for n in range(MOST) if coin.random() >= chance), MOST)
            tokens = [0] * right + [WRONG] * (MOST - right)
            values = [chance**n for n in range(1, MOST + 1)] if claims else []
            drafts.append([tokens, list(range(-1, MOST - 1)), values])
        replies.append({"truth": [0] * n_tokens, "drafts": drafts})
    return replies


@pytest.mark.long
@pytest.mark.parametrize("claims", [False, True], ids=["measured", "claimed"])
@pytest.mark.parametrize(
    ("r", "beta", "chance"),
    [(0.3, 0.05, 0.8), (0.3, 0.05, 0.5), (0.3, 0.05, 0.2), (0.1, 0.4, 0.7), (0.1, 0.4, 0.4), (0.8, 0.4, 0.9)],
)
def test_the_leaf_drafts_where_that_speeds_up_the_intermediate(
    r: float, beta: float, chance: float, claims: bool
) -> None:
    def curve(n: int) -> float:
        return STEP_S * (1 + beta * (n - 1))

    def tau(d: int) -> float:
        return sum(chance**n for n in range(d + 1))

    leaf = Replay("leaf", simulated(chance, claims=claims), r * STEP_S)
    rounds = list(replayed_rounds([leaf], curve, own_s=0.0, greedy=False))
    settled = rounds[len(rounds) // 4 :]
    reached = sum(n for n, _ in settled) / sum(s for _, s in settled) * STEP_S
    expected = {d: tau(d) / (1 + d * (r + beta)) for d in range(1, MOST + 1)}
    n_plain = sum(seconds == STEP_S for _, seconds in settled)
    if max(expected.values()) > 1:
        assert n_plain < 0.05 * len(settled)
        # As good as the best fixed length would have been on these very drafts.
        assert reached > 0.95 * max(fixed_speed(leaf, d, curve, own_s=0.0) for d in expected) * STEP_S
    else:
        assert n_plain > 0.85 * len(settled)
        assert reached > 0.99
