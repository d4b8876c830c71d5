"""Guessing with a smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge_spec.errors import Arguments, Sentence, SettingsError
from edge_spec.sampling import Sampler
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.follower import Follower
from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["ModelDrafter"]


class ModelDrafter(Drafter):
    """Grows a tree of guesses level by level, one decode per level; a sequence is a tree of width 1.

    A node's value is the product of the estimated chances of acceptance along its path, and the estimate comes
    from the margin to the best candidate under the shared noise (``Sampler.guess``). Each level expands the
    ``beam`` most valuable nodes of the level above (dynamic trees by level: DySpec, arXiv 2410.11744, with
    the beam of EAGLE-2, arXiv 2406.16858). With a beam of 1 the tree is a path and the siblings along it, which cost
    the drafter nothing: they are in the rows of the path. Pruning by value is free of bias, since shared noise asks
    nothing of drafts.

    Args:
        model: the drafter's own model and cache; must take trees if ``beam`` is above 1.
        width: candidates considered per node.
        beam: nodes expanded per level; as many as ``width`` if None.
        depth: levels of a tree; a path goes as deep as its limit.
        min_value: nodes worth less are not drafted.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        width: int = 1,
        beam: int | None = None,
        depth: int = 4,
        min_value: float = 0.0,
    ) -> None:
        beam = width if beam is None else beam
        if width < 1 or beam < 1 or depth < 1:
            raise SettingsError(f"a draft tree of width {width}, beam {beam} and depth {depth}; all must be 1 or more")
        if not model.capabilities.rollback:
            raise SettingsError(
                "this drafter's model cannot roll back drafts",
                hint=Sentence("use {instead}", instead=Arguments(speculation="ngram")),
            )
        if beam > 1 and not model.capabilities.takes_trees:
            raise SettingsError(
                "this drafter's model cannot take trees",
                hint=Sentence("use {instead}", instead=Arguments(speculation="sequence")),
            )
        self.name = "sequence" if beam == 1 else "tree"
        self._follower = Follower(model)
        self._width = width
        self._beam = beam
        self._depth = depth
        self._min_value = min_value
        self._sampler: Sampler | None = None

    def begin(self, text: Text, sampler: Sampler) -> None:
        super().begin(text, sampler)
        self._follower.follow(text, reuse=True)
        self._sampler = sampler.over(self._follower.model.kept)

    def draft(self, limit: int) -> Tree:
        return self.draft_while(limit, lambda draft: True)

    def draft_while(self, limit: int, worth_more: Callable[[Tree], bool]) -> Tree:
        sampler, text, follower = self._sampler, self.text.tokens, self._follower
        model = follower.model
        assert sampler is not None, "begin() comes first"
        levels = min(limit if self._beam == 1 else self._depth, limit, model.n_ctx - len(text))
        if levels < 1:
            return EMPTY
        uncommitted = follower.uncommitted(model.capabilities.max_rows // 2)
        model.hold()
        decoded = Tree.sequence(uncommitted)
        rows = follower.decode(decoded)[-1:]
        candidates = _Candidates(self._min_value)
        frontier = [-1]
        places = {-1: len(uncommitted) - 1}
        for level in range(levels):
            first = len(candidates.tokens)
            for node, row in zip(frontier, rows, strict=True):
                candidates.add(node, sampler.guess(row, text + candidates.path_to(node), self._width))
            # All of a tree takes no more rows than one decode may: that bounds its branches and cells.
            room = min(self._beam, model.capabilities.max_rows - len(decoded)) if self._beam > 1 else 1
            frontier = candidates.worth_expanding(first, room, limit) if level < levels - 1 else []
            if not frontier or not worth_more(candidates.tree()):
                break
            decoded = candidates.grow(decoded, frontier, places)
            rows = follower.decode(decoded)
        draft = candidates.tree()
        return draft if self._width == 1 else draft.best(limit)

    @property
    def followed(self) -> dict[str, Follower]:
        return {self.name: self._follower}


class _Candidates:
    """All nodes met while a draft grows, decoded or not."""

    def __init__(self, min_value: float) -> None:
        self.tokens: list[int] = []
        self._parents: list[int] = []
        self._values: list[float] = []
        self._min_value = min_value

    def add(self, parent: int, guesses: Sequence[tuple[int, float]]) -> None:
        """Take the guesses of what follows a node (-1: the text) that are worth enough."""
        above = self._values[parent] if parent >= 0 else 1.0
        for token, chance in guesses:
            if above * chance >= self._min_value:
                self.tokens.append(token)
                self._parents.append(parent)
                self._values.append(above * chance)

    def worth_expanding(self, first: int, most: int, limit: int) -> list[int]:
        """The most valuable nodes from ``first`` on, without those that a draft of ``limit`` nodes leaves out."""
        values = self._values
        nodes = sorted(range(first, len(values)), key=lambda node: -values[node])[: max(most, 0)]
        if len(values) <= limit:
            return nodes
        worth = sorted(values, reverse=True)[limit - 1]
        return [node for node in nodes if values[node] >= worth]

    def grow(self, decoded: Tree, nodes: Sequence[int], places: dict[int, int]) -> Tree:
        """Return the tree that the model decodes next; ``places`` says where each node stands in it."""
        tokens, parents = list(decoded.tokens), list(decoded.parents)
        for node in nodes:
            places[node] = len(tokens)
            tokens.append(self.tokens[node])
            parents.append(places[self._parents[node]])
        return Tree(tuple(tokens), tuple(parents))

    def path_to(self, node: int) -> list[int]:
        """Return the tokens from the text down to a node; none for -1."""
        path: list[int] = []
        while node >= 0:
            path.append(self.tokens[node])
            node = self._parents[node]
        return path[::-1]

    def tree(self) -> Tree:
        """Return all of them."""
        return Tree(tuple(self.tokens), tuple(self._parents), tuple(self._values))
