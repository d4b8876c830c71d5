"""Random texts in one pool, and the same steps where each is the only text."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edge_spec.errors import ContextFull, PoolFull
from edge_spec.speculation.pool import TILE
from edge_spec.speculation.tree import Tree

__all__ = ["PathsInCompany", "some_tokens"]


def some_tokens(chance: random.Random, n: int) -> list[int]:
    """Tokens of the demo family that stand for text."""
    return [chance.randrange(300, 8191) for _ in range(n)]


class PathsInCompany(ABC):
    """Paths of a small pool, and what each holds, step by step, so that a model of its own can do the same."""

    most_tiles: int

    def __init__(self, root: Any, seed: int) -> None:
        self.chance, self.pool = random.Random(seed), root.pool
        self.pool.resize(20 * TILE)
        self.paths: list[Any] = [root]
        self.steps: list[list[tuple[str, Any]]] = [[]]

    @abstractmethod
    def chosen(self) -> str:
        """Draw what is done."""

    @abstractmethod
    def drafted(self, path: Any) -> Tree | None:
        """Draw what a path decodes; None if nothing."""

    @abstractmethod
    def kept(self, path: Any) -> Sequence[int] | None:
        """Draw which pending nodes become text; None if there are none."""

    def play(self, alone: Any, n_steps: int, most_refused: int, look: Callable[[], object]) -> None:
        """Do random things; then every path holds what a text holds that is alone.

        Args:
            look: called after each.
        """
        refused = 0
        for _ in range(n_steps):
            try:
                self.act(alone)
            except (PoolFull, ContextFull):
                refused += 1
            look()
        assert refused < most_refused
        for index, path in enumerate(self.paths):
            self.replayed(alone, index)
            alone.rollback(alone.n_past)
            path.rollback(path.n_past)
            assert path.save() == alone.save()

    def act(self, alone: Any) -> None:
        """Do one thing."""
        chance, paths, pool = self.chance, self.paths, self.pool
        some = chance.sample(range(len(paths)), chance.randrange(1, min(4, len(paths)) + 1))
        one, path, act = some[0], paths[some[0]], self.chosen()
        n = chance.randrange(path.n_past + 1)
        if act == "decode":
            trees = {index: tree for index in some if (tree := self.drafted(paths[index])) is not None}
            found = pool.decode([(paths[index], tree) for index, tree in trees.items()]) if trees else []
            copies = [rows.copy() for rows in found]
            for (index, tree), rows in zip(trees.items(), copies, strict=True):
                self.steps[index].append(("decode", tree))
                assert np.array_equal(self.replayed(alone, index), rows)
        elif act == "prefill":
            read = {index: some_tokens(chance, chance.randrange(30)) for index in some}
            pool.prefill([(paths[index], each) for index, each in read.items()])
            for index, each in read.items():
                self.steps[index].append(("prefill", each))
        elif act == "keep" and (kept := self.kept(path)) is not None:
            path.keep(kept)
            self.steps[one].append(("keep", kept))
        elif act == "rollback":
            path.rollback(n)
            self.steps[one].append(("rollback", n))
        elif act == "fork" and len(paths) < 7:
            paths.append(path.fork(n))
            self.steps.append([*self.steps[one], ("rollback", n)])
        elif act == "shift":
            path.shift(n // 2, n)
            self.steps[one].append(("shift", (n // 2, n)))
        elif act == "close" and one:
            path.close()
            del paths[one], self.steps[one]
        elif act == "resize":
            pool.resize(max(pool.n_cells - pool.n_free, TILE * chance.randrange(12, self.most_tiles)))
        elif act == "save":
            state = path.save()
            path.rollback(0)
            path.restore(state)
            self.steps[one].append(("rollback", path.n_past))

    def replayed(self, alone: Any, index: int) -> Any:
        """Return what the last step of a path returns where it is the only text."""
        alone.rollback(0)
        found = None
        for act, what in self.steps[index]:
            found = alone.shift(*what) if act == "shift" else getattr(alone, act)(what)
        return found
