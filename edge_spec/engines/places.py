"""To where a text can go back in a model that keeps states instead of cells.

A cell belongs to a token, and a cache of them can forget its last ones. A recurrent layer has one state, which every
token changes: what it was before is gone, unless a copy was kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Places"]


@dataclass
class Places:
    """Lengths of a text at which a model has a state.

    Attributes:
        n_snapshots: before how many rows of a decode, from the last one on, it keeps the state.
        end: how many tokens the newest state has seen, pending ones and padding included; None if it is damaged.
        n_back: how many tokens before ``end`` there are snapshots of.
        copies: copies of other states, by length. There is always one of an empty text, which is not among them.
    """

    n_snapshots: int
    end: int | None = 0
    n_back: int = 0
    copies: dict[int, Any] = field(default_factory=dict)

    def computed(self, end: int, n_rows: int) -> None:
        """Note that ``n_rows`` rows have brought the state to ``end`` tokens; no state before the first one is left."""
        self.end, self.n_back = end, min(self.n_snapshots, n_rows - 1)

    def moved(self, n: int) -> None:
        """Note that the newest state is that of ``n`` tokens, and that its snapshots are used up."""
        self.end, self.n_back = n, 0

    def damaged(self) -> None:
        """Note that the newest state and its snapshots cannot be used."""
        self.end, self.n_back = None, 0

    def is_near(self, n: int) -> bool:
        """Return whether the newest state or one of its snapshots is that of ``n`` tokens."""
        return self.end is not None and self.end - self.n_back <= n <= self.end

    def nearest(self, n: int) -> int:
        """Return the last length up to ``n`` with a state.

        Copies beyond it are dropped: the text goes on in another way.
        """
        place = n if self.is_near(n) else max((known for known in self.copies if known <= n), default=0)
        self.copies = {known: copy for known, copy in self.copies.items() if known <= place}
        return place
