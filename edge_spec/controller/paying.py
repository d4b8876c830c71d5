"""Where speculation pays on this device, by what was measured here.

After SpecMemo (arXiv 2506.01986), which asks for the least memory at which it is faster than plain decoding by a share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edge_spec.speculation.chooser.curve import CostCurve

__all__ = ["Gain", "needed_chance"]

_LEAST = 0.05
"""A speed-up of 1 plus this pays: ``bench`` with its defaults cannot tell a smaller one from none. The 95 % intervals
in the README reach some 5 % to either side."""

_LONGEST = 7
"""Drafted tokens of the longest chain looked at: the smallest batch that a plan chooses has eight rows."""

_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What a way to draft has brought on this device.

    Attributes:
        speed_up: tokens per second over those of plain decoding.
        low, high: its 95 % interval.
        drafted: tokens that were drafted meanwhile.
        rounds: how many rounds it was measured over.
        mode: the mode that ``bench`` or ``pair`` has measured.
    """

    speed_up: float
    low: float
    high: float
    drafted: int
    rounds: int
    mode: str

    @property
    def is_sure(self) -> bool:
        """Whether drafts have changed the speed for sure; else it may have been that of the machine."""
        return self.drafted > 0 and not self.low <= 1 <= self.high

    @property
    def pays(self) -> bool:
        """Whether it is worth its memory."""
        return self.is_sure and self.speed_up >= 1 + _LEAST


def needed_chance(target: Mapping[int, float], step_s: float) -> float | None:
    """Return the share of drafted tokens that must be accepted for chains to pay; None if no share is enough.

    Args:
        target: seconds of a decode of the target by its number of rows.
        step_s: seconds of drafting a token.
    """
    curve = CostCurve(target)

    def speed_up(chance: float, n: int) -> float:
        tokens = sum(chance**depth for depth in range(n + 1))
        return tokens * curve(1) / (curve(n + 1) + n * step_s)

    for step in range(1, _STEPS + 1):
        chance = step / _STEPS
        if any(speed_up(chance, n) >= 1 + _LEAST for n in range(1, _LONGEST + 1)):
            return chance
    return None
