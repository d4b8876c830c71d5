"""Guessing with a smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.errors import Arguments, PoolFull, Sentence, SettingsError
from edge_spec.sampling import Asked, Guesses, Sampler, guess_all
from edge_spec.speculation.drafters.base import Drafter, WorthMore, always
from edge_spec.speculation.follower import Follower, decode_all
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import Path
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["ModelDrafter"]


class ModelDrafter(Drafter):
    """Grows a tree of guesses level by level, one decode per level; a sequence is a tree of width 1.

    A level of several texts in the pool of one model takes one decode.

    A node's value is the product of the estimated chances of acceptance along its path, and the estimate comes
    from the margin to the best candidate under the shared noise (``Sampler.guess``). Each level expands the
    ``beam`` most valuable nodes of the level above (dynamic trees by level: DySpec, arXiv 2410.11744, with
    the beam of EAGLE-2, arXiv 2406.16858). With a beam of 1 the tree is a path and the siblings along it, which cost
    the drafter nothing: they are in the rows of the path. Pruning by value is free of bias, since shared noise asks
    nothing of drafts.

    Args:
        model: a path of the drafter's own model; must take trees if ``beam`` is above 1.
        width: candidates considered per node.
        beam: nodes expanded per level; as many as ``width`` if None.
        depth: levels of a tree; a path goes as deep as its limit.
        min_value: nodes worth less are not drafted.
    """

    def __init__(
        self,
        model: Path,
        *,
        width: int = 1,
        beam: int | None = None,
        depth: int = 4,
        min_value: float = 0.0,
    ) -> None:
        beam = width if beam is None else beam
        if width < 1 or beam < 1 or depth < 1:
            raise SettingsError(f"a draft tree of width {width}, beam {beam} and depth {depth}; all must be at least 1")
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

    def draft_all_while(
        self, drafters: Sequence[Drafter], limits: Sequence[int], worth_more: WorthMore
    ) -> Sequence[Tree]:
        mine = [each for each in drafters if isinstance(each, ModelDrafter)]
        drafts = [_Growing(each, limit, len(mine)) for each, limit in zip(mine, limits, strict=True)]
        going = [each for each in drafts if each.n_levels]
        while going:
            try:
                rows = decode_all([each.follower for each in going], [each.decoded for each in going])
            except PoolFull:
                # Who comes last goes without, or no further.
                going.pop()
                continue
            asked = [each.asked(its_rows) for each, its_rows in zip(going, rows, strict=True)]
            for each, guesses in zip(going, guess_all(asked, self._width), strict=True):
                each.take(guesses)
            going = [each for each in going if each.frontier]
            if not going:
                break
            if worth_more is not always:
                seen = [each.tree() if each in going else EMPTY for each in drafts]
                if not worth_more(seen):
                    break
            for each in going:
                each.grow()
        return [each.tree() if self._width == 1 else each.tree().best(each.limit) for each in drafts]

    @property
    def followed(self) -> dict[str, Follower]:
        return {self.name: self._follower}


class _Growing:
    """A draft while it grows: all nodes met, decoded or not.

    Attributes:
        follower: the model and its text.
        n_levels: how many there will be at most.
        decoded: what the model decodes next, or has decoded last.
        frontier: the nodes that it decodes next; -1 is the text.
        limit: nodes of the draft.
    """

    def __init__(self, drafter: ModelDrafter, limit: int, n_texts: int) -> None:
        assert drafter._sampler is not None, "begin() comes first"
        self.follower, self._sampler = drafter._follower, drafter._sampler
        self._text, self._n_text = drafter.text.tokens, len(drafter.text)
        self._min_value = drafter._min_value
        model = self.follower.model
        max_rows = model.capabilities.max_rows
        self.limit, self._beam = limit, min(drafter._beam, max_rows // n_texts)
        self.n_levels = max(0, min(limit if self._beam == 1 else drafter._depth, limit, model.n_ctx - self._n_text))
        uncommitted: Sequence[int] = ()
        if self.n_levels:
            try:
                uncommitted = self.follower.uncommitted(max_rows // max(2, n_texts))
                model.hold()
            except PoolFull:
                self.n_levels = 0
        self.decoded = Tree.sequence(uncommitted)
        self.frontier = [-1]
        # Where each node stands in what is decoded.
        self._places = {-1: len(uncommitted) - 1}
        self._level = 0
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._values: list[float] = []

    def asked(self, rows: Logits) -> Asked:
        """Return what has to be guessed: what follows each node of the frontier, whose rows were decoded last."""
        frontier, length = self.frontier, self._n_text + self._level
        return Asked(self._sampler, rows[len(rows) - len(frontier) :], length, self._text_to)

    def _text_to(self, number: int) -> list[int]:
        """Return the text down to a node of the frontier."""
        path: list[int] = []
        node = self.frontier[number]
        while node >= 0:
            path.append(self._tokens[node])
            node = self._parents[node]
        return [*self._text, *path[::-1]]

    def take(self, found: Sequence[Guesses]) -> None:
        """Take the guesses of what follows each node of the frontier, and choose the nodes that go on."""
        tokens, parents, values = self._tokens, self._parents, self._values
        first = len(tokens)
        for node, guesses in zip(self.frontier, found, strict=True):
            above = values[node] if node >= 0 else 1.0
            for token, chance in guesses:
                if above * chance >= self._min_value:
                    tokens.append(token)
                    parents.append(node)
                    values.append(above * chance)
        self._level += 1
        self.frontier = self._worth_expanding(first) if self._level < self.n_levels else []

    def _worth_expanding(self, first: int) -> list[int]:
        """Return the most valuable nodes from ``first`` on, without those that the draft has no room for."""
        values, most = self._values, self._beam
        if most > 1:
            # All of a tree takes no more rows than one decode may: that bounds its branches and cells.
            most = min(most, self.follower.model.capabilities.max_rows - len(self.decoded))
        nodes = sorted(range(first, len(values)), key=lambda node: -values[node])[: max(most, 0)]
        if len(values) <= self.limit:
            return nodes
        worth = sorted(values, reverse=True)[self.limit - 1]
        return [node for node in nodes if values[node] >= worth]

    def grow(self) -> None:
        """Let the frontier be decoded."""
        tokens, parents, places = [*self.decoded.tokens], [*self.decoded.parents], self._places
        for node in self.frontier:
            places[node] = len(tokens)
            tokens.append(self._tokens[node])
            parents.append(places[self._parents[node]])
        self.decoded = Tree(tuple(tokens), tuple(parents))

    def tree(self) -> Tree:
        """Return all of them."""
        return Tree(tuple(self._tokens), tuple(self._parents), tuple(self._values))
