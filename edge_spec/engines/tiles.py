"""Which tiles of a pool its paths hold: counted, shared, and copied before they are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from edge_spec.errors import PoolFull
from edge_spec.speculation.pool import TILE

__all__ = ["Cells", "PathTiles", "Tiles", "n_tiles"]

Cells = npt.NDArray[np.intp]
"""Numbers of cells."""

_LATEST = 64
"""Whoever has taken one of so many last tiles may grow beyond it."""


def n_tiles(n_cells: int) -> int:
    """Return the number of tiles that have so many cells."""
    return -(-n_cells // TILE)


class Tiles:
    """The tiles of a pool, and by how many paths each is held.

    Attributes:
        n: how many there are, numbered from 0.
        paths: what holds them.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.paths: WeakSet[PathTiles] = WeakSet()
        self._n_holders: dict[int, int] = {}
        self._latest: deque[int] = deque(maxlen=_LATEST)
        self._end = 0

    @property
    def n_free(self) -> int:
        """How many nobody holds."""
        return self.n - len(self._n_holders)

    @property
    def n_shared(self) -> int:
        """How many several paths hold."""
        return sum(count > 1 for count in list(self._n_holders.values()))

    @property
    def end(self) -> int:
        """Where those that were ever held end."""
        return self._end

    def reserve(self, places: Sequence[tuple[PathTiles, int, int]]) -> list[tuple[int, int]]:
        """Have places of some paths, from the first up to the last given, in tiles that no other path holds.

        Returns:
            Which tiles are to be copied to which, for what stands before and after these places.

        Raises:
            PoolFull: there are too few tiles; nothing has changed.
        """
        lacking = [(each, n) for each in places if (n := each[0].n_needed(*each[1:]))]
        self.require(sum(n for _, n in lacking))
        return [copy for (path, first, last), _ in lacking for copy in path.reserve(first, last)]

    def require(self, n: int) -> None:
        """Refuse what needs more free tiles than there are.

        Raises:
            PoolFull: there are fewer than ``n``.
        """
        if n > self.n_free:
            raise PoolFull(n_free=self.n_free * TILE, n_needed=n * TILE)

    def take(self, wish: int) -> int:
        """Return a free tile, now held once: the one that is wished for, so that paths lie in stretches.

        Where that is taken it is one of the longest free stretch: its first one, or, where somebody grows towards it,
        that in the middle, so that both have as much room.
        """
        tile = wish if wish < self.n and wish not in self._n_holders else self._apart()
        self._end = max(self._end, tile + 1)
        self._n_holders[tile] = 1
        self._latest.append(tile)
        return tile

    def _apart(self) -> int:
        """Return where a path goes on that cannot go on where it is."""
        held = np.array([-1, *sorted(self._n_holders), self.n])
        longest = int(np.diff(held).argmax())
        before, after = held[longest : longest + 2].tolist()
        return int(before + after) // 2 if before in self._latest else int(before) + 1

    def hold(self, tile: int) -> None:
        """One more path holds a tile."""
        self._n_holders[tile] += 1

    def release(self, tile: int) -> None:
        """One path less holds it."""
        self._n_holders[tile] -= 1
        if not self._n_holders[tile]:
            del self._n_holders[tile]

    def is_shared(self, tile: int) -> bool:
        """Return whether several paths hold it."""
        return self._n_holders[tile] > 1

    def resize(self, n: int) -> dict[int, int]:
        """Have ``n`` tiles; returns where held ones have moved that would lie outside, in their paths as well.

        Raises:
            ValueError: more are held.
        """
        held = self._n_holders
        if n < len(held):
            raise ValueError(f"a pool of {n * TILE} cells, of which {len(held) * TILE} are held")
        free = (tile for tile in range(n) if tile not in held)
        moved = {tile: next(free) for tile in sorted(held) if tile >= n}
        self._n_holders = {moved.get(tile, tile): count for tile, count in held.items()}
        self.n, self._end = n, max(self._n_holders, default=-1) + 1
        for path in self.paths:
            path.ids = [moved.get(tile, tile) for tile in path.ids]
        return moved


class PathTiles:
    """The tiles of one path.

    Attributes:
        ids: the tiles in the order of the text.
    """

    def __init__(self, tiles: Tiles) -> None:
        self.ids: list[int] = []
        self._tiles = tiles
        tiles.paths.add(self)

    def n_needed(self, first: int, last: int) -> int:
        """Return how many tiles must be free before the places from ``first`` up to ``last`` can be written."""
        if last <= first:
            return 0
        shared = sum(map(self._tiles.is_shared, self.ids[first // TILE : n_tiles(last)]))
        return shared + max(0, n_tiles(last) - len(self.ids))

    def reserve(self, first: int, last: int) -> list[tuple[int, int]]:
        """See ``Tiles.reserve``; there must be enough."""
        tiles, copies = self._tiles, list[tuple[int, int]]()
        for place in range(first // TILE, n_tiles(last) if first < last else 0):
            wish = self.ids[place - 1] + 1 if place else 0
            if place == len(self.ids):
                self.ids.append(tiles.take(wish))
            elif tiles.is_shared(self.ids[place]):
                old, self.ids[place] = self.ids[place], tiles.take(wish)
                tiles.release(old)
                copies.append((old, self.ids[place]))
        return copies

    def cut(self, n: int) -> None:
        """Give back the tiles beyond ``n`` tokens."""
        while len(self.ids) > n_tiles(n):
            self._tiles.release(self.ids.pop())

    def fork(self, n: int) -> tuple[PathTiles, list[tuple[int, int]]]:
        """Return the tiles of a path with the first ``n`` tokens of this one, and the copies to be made for it.

        Raises:
            PoolFull: the tile in which it forks cannot be copied.
        """
        self._tiles.require(int(n % TILE > 0))
        fork = PathTiles(self._tiles)
        fork.ids = self.ids[: n // TILE]
        for tile in fork.ids:
            self._tiles.hold(tile)
        if n % TILE == 0:
            return fork, []
        (copied,) = self.ids[n // TILE : n // TILE + 1]
        fork.reserve(n // TILE * TILE, n)
        return fork, [(copied, fork.ids[-1])]

    def cells(self, first: int, last: int) -> Cells:
        """Return the cells of the places from ``first`` up to ``last``."""
        return self.cells_of(np.arange(first, last))

    def cells_of(self, places: Cells) -> Cells:
        """Return the cells of some places."""
        return np.array(self.ids, np.intp)[places // TILE] * TILE + places % TILE if len(places) else places
