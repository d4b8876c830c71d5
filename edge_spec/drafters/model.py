"""Guessing with a smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.backends.base import LanguageModel
from edge_spec.errors import SettingsError
from edge_spec.sampling import Sampler
from edge_spec.speculator import catch_up, common_prefix
from edge_spec.tree import EMPTY, Tree

__all__ = ["ModelDrafter"]


class ModelDrafter:
    """Grows a tree of guesses level by level, one decode per level; a sequence is a tree of width 1.

    A node's value is the product of the estimated chances of acceptance along its path, and the estimate comes
    from the margin to the best candidate under the shared noise (``Sampler.guess``). Each level expands the
    ``width`` most valuable nodes of the level above (dynamic trees by level: DySpec, arXiv 2410.11744, with
    the beam of EAGLE-2, arXiv 2406.16858). Pruning by value is free of bias, since shared noise asks nothing
    of drafts.

    Args:
        model: the drafter's own model and cache; must take trees if ``width`` is above 1.
        width: nodes expanded per level and candidates considered per node.
        depth: levels of a tree; a sequence goes as deep as its limit.
        least_value: nodes worth less are not drafted.
    """

    def __init__(self, model: LanguageModel, *, width: int = 1, depth: int = 4, least_value: float = 0.0) -> None:
        if width < 1 or depth < 1:
            raise SettingsError(f"a draft tree of width {width} and depth {depth}; both must be 1 or more")
        if not model.traits.can_rollback:
            raise SettingsError("this drafter's model cannot take guesses back", hint="use speculation 'ngram'")
        if width > 1 and not model.traits.takes_trees:
            raise SettingsError("this drafter's model cannot take trees", hint="use speculation 'sequence'")
        self.name = "sequence" if width == 1 else "tree"
        self._model = model
        self._width = width
        self._depth = depth
        self._least_value = least_value
        self._text: list[int] = []
        self._pending: Tree = EMPTY
        self._sampler: Sampler | None = None

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        shared = common_prefix(self._text[: self._model.n_past], prompt)
        self._model.rollback(min(self._model.n_past, shared))
        self._text = list(prompt)
        self._sampler = sampler
        self._pending = EMPTY

    def draft(self, limit: int) -> Tree:
        sampler, model = self._sampler, self._model
        assert sampler is not None, "begin() comes first"
        levels = min(limit if self._width == 1 else self._depth, limit, model.n_ctx - len(self._text))
        if levels < 1:
            return EMPTY
        if self._pending:
            # A round broke off between draft and verdict; its guesses are in the cache still.
            model.rollback(model.n_past)
            self._pending = EMPTY
        behind = catch_up(model, self._text, model.traits.max_rows // 2)
        # Nodes that the model has decoded, and the draft's nodes: every candidate met, decoded or not.
        decoded = Tree.sequence(behind)
        tokens: list[int] = []
        parents: list[int] = []
        values: list[float] = []
        rows = model.decode(decoded)[-1:]
        frontier = [-1]
        place_of = {-1: len(behind) - 1}
        for level in range(levels):
            first = len(tokens)
            for node, row in zip(frontier, rows, strict=True):
                value = values[node] if node >= 0 else 1.0
                for token, chance in sampler.guess(row, self._text_to(node, tokens, parents), self._width):
                    if value * chance >= self._least_value:
                        tokens.append(token)
                        parents.append(node)
                        values.append(value * chance)
            if level == levels - 1:
                break
            # All of a tree together takes no more rows than one decode may: that bounds its branches and cells.
            room = min(self._width, model.traits.max_rows - len(decoded)) if self._width > 1 else 1
            frontier = sorted(range(first, len(tokens)), key=lambda node: -values[node])[: max(room, 0)]
            # A candidate that the limit leaves out anyway is not worth a row.
            if len(tokens) > limit:
                worth = sorted(values, reverse=True)[limit - 1]
                frontier = [node for node in frontier if values[node] >= worth]
            if not frontier:
                break
            grown_tokens, grown_parents = list(decoded.tokens), list(decoded.parents)
            for node in frontier:
                place_of[node] = len(grown_tokens)
                grown_tokens.append(tokens[node])
                grown_parents.append(place_of[parents[node]])
            decoded = Tree(tuple(grown_tokens), tuple(grown_parents))
            rows = model.decode(decoded)
        self._pending = decoded
        draft = Tree(tuple(tokens), tuple(parents), tuple(values))
        return draft if self._width == 1 else draft.best(limit)

    def _text_to(self, node: int, tokens: list[int], parents: list[int]) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.append(tokens[node])
            node = parents[node]
        return self._text + path[::-1]

    def accept(self, tokens: Sequence[int]) -> None:
        behind = self._text[self._model.n_past :]
        self._text.extend(tokens)
        if self._pending:
            self._model.keep(self._pending.descend((*behind, *tokens)))
            self._pending = EMPTY

    def rollback(self, length: int) -> None:
        self._pending = EMPTY
        self._model.rollback(min(self._model.n_past, length))
        del self._text[length:]

    def close(self) -> None:
        self._model.close()
