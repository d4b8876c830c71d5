"""Decide from measurements where speculation pays on this device.

After SpecMemo (arXiv 2506.01986), which asks for the least memory at which it is faster than plain decoding by a share.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gain"]

_LEAST = 0.05
"""A speed-up of 1 plus this pays: ``bench`` with its defaults cannot tell a smaller one from none. The 95 % intervals
in the README reach some 5 % to either side."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The measured speed-up of a mode on this device.

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
        """Whether the interval excludes 1, so that drafts changed the speed."""
        return self.drafted > 0 and not self.low <= 1 <= self.high

    @property
    def pays(self) -> bool:
        """Whether the mode is worth its memory."""
        return self.is_sure and self.speed_up >= 1 + _LEAST
